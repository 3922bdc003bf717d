/* SPDX-License-Identifier: Apache-2.0 */
/* The process that owns the hardware, where there is one: memory is had from it and from nobody else.
 *
 * It listens on a socket beside the hardware file and knows by the socket's peer who asks. What a program writes into
 * the file, or which library it loads, changes nothing for it: memory that it did not grant is not there.
 * Return convention: 0 on success, a negative errno otherwise. */
#define _GNU_SOURCE
#include "hw.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { LONGEST_SECONDS = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int owner = -1;
static pid_t asker; /* a fork does not ask on its parent's connection */
static char asked[sizeof((struct sockaddr_un *)0)->sun_path]; /* of which hardware; another may be used later */

/* 1 where memory is to be had from an owner only. */
int hw_owned(const struct hw *hw)
{
    return hw->file->params.owned != 0;
}

static int dial(const struct hw *hw)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = LONGEST_SECONDS};
    if (snprintf(to.sun_path, sizeof to.sun_path, "%s.owner", hw->path) >= (int)sizeof to.sun_path)
        return -ENAMETOOLONG;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int bad = setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
              setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) ||
              connect(fd, (struct sockaddr *)&to, sizeof to);
    if (bad) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static int exchange(const uint64_t question[4], int fd, struct hw_answer *answer)
{
    struct iovec part = {.iov_base = (void *)question, .iov_len = 4 * sizeof *question};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    if (sendmsg(owner, &message, MSG_NOSIGNAL) != (ssize_t)part.iov_len)
        return -EIO;
    return recv(owner, answer, sizeof *answer, 0) == (ssize_t)sizeof *answer ? (int)answer->status : -EIO;
}

/* Ask it; `fd` goes along where it is one. A connection that is lost is not made again by a process that had memory:
 * the owner took it back. */
int hw_ask(const struct hw *hw, const struct hw_card *card, enum hw_question what, uint64_t x, uint64_t y, int fd,
           struct hw_answer *answer)
{
    const uint64_t question[4] = {what, (uint64_t)(card - hw->file->card), x, y};
    int tries = what == HW_SET_LIMIT || what == HW_GET_LIMIT ? 2 : 1, status = -EIO; /* these have no memory */
    pthread_mutex_lock(&lock);
    for (; tries > 0 && status == -EIO; tries--) {
        if (asker != getpid() || strcmp(asked, hw->path)) {
            if (owner >= 0)
                close(owner);
            owner = dial(hw);
            asker = getpid();
            if (snprintf(asked, sizeof asked, "%s", hw->path) >= (int)sizeof asked)
                asked[0] = 0; /* nor was it dialled */
        }
        status = owner < 0 ? -EIO : exchange(question, fd, answer);
        if (status == -EIO && (what == HW_SET_LIMIT || what == HW_GET_LIMIT))
            asker = 0;
    }
    pthread_mutex_unlock(&lock);
    return status;
}
