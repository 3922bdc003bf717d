// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "limits.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_SECONDS = 4 };

int find_cgroup(char *lines, const char *id, char *group, size_t room)
{
    for (char *rest = lines, *line; (line = strsep(&rest, "\n"));) {
        if (strncmp(line, "0::/", 4))
            continue;
        char *at = strstr(line + 3, id), *end = at ? at + strcspn(at, "/") : NULL;
        if (!at)
            return 0;
        *end = 0; /* a group below the container's own has the same limit */
        return snprintf(group, room, "%s", line + 3) < (int)room;
    }
    return 0;
}

/* Connected to the node agent, which only root may speak to; -1 with errno. */
static int dial(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = ANSWER_SECONDS};
    struct stat about;
    if (strlen(path) >= sizeof to.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(to.sun_path, path);
    if (lstat(path, &about))
        return -1;
    if (about.st_uid != 0 || !S_ISSOCK(about.st_mode) || (about.st_mode & 077)) {
        errno = EPERM;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) ||
        connect(fd, (struct sockaddr *)&to, sizeof to))
        return -1;
    return fd;
}

int ask_limits(const char *path, const char *id, const char *group, const char *parts, char *answer, size_t room)
{
    char question[8192];
    int length = snprintf(question, sizeof question, "%s\t%s\t%s\n", id, group, parts);
    int fd = length < (int)sizeof question ? dial(path) : -1;
    size_t have = 0;
    ssize_t got = -1;
    if (fd >= 0 && send(fd, question, (size_t)length, MSG_NOSIGNAL) == length)
        while (have + 1 < room && (got = recv(fd, answer + have, room - 1 - have, 0)) > 0)
            have += (size_t)got;
    int error = errno;
    answer[have] = 0;
    if (fd >= 0)
        close(fd);
    if (got < 0 || !have || answer[have - 1] != '\n') {
        snprintf(answer, room, "%s", got < 0 ? error == EAGAIN ? "no answer in time" : strerror(error) : "no answer");
        return 0;
    }
    answer[have - 1] = 0;
    return strcmp(answer, "ok") == 0;
}
