/* SPDX-License-Identifier: Apache-2.0 */
/* Joining an MPS server: the control daemon at the pipe directory is asked for one, and says what its clients may have.
 *
 * NVIDIA, "Multi-Process Service" (CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
 * CUDA_MPS_PINNED_DEVICE_MEM_LIMIT): a program whose daemon cannot be reached runs without MPS; what its environment
 * says only lowers what the daemon says; its daemon lets it wait while the server of another user has clients.
 * Return convention: CUresult. */
#define _GNU_SOURCE
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_DIRECTORY "/tmp/nvidia-mps"
enum { LONGEST_ANSWER = 4096 };

static int dial(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *set = getenv("CUDA_MPS_PIPE_DIRECTORY");
    const char *directory = set ? set : DEFAULT_DIRECTORY;
    if (snprintf(to.sun_path, sizeof to.sun_path, "%s/control", directory) >= (int)sizeof to.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* One amount such as 512M, or 0 where it is none. */
static uint64_t amount(const char *text, char **end)
{
    uint64_t value = strtoull(text, end, 10);
    if (*end == text)
        return 0;
    const char *units = "KMG", *unit = **end ? strchr(units, toupper((unsigned char)**end)) : NULL;
    *end += unit != NULL;
    return unit ? value << 10 * (unit - units + 1) : value;
}

/* Lower the limits by "0=1G,1=512M"; the numbers are those of the server's devices. A text with anything else in it, a
 * UUID or a device that the server lacks, limits nothing. */
static void lower_limits(const char *text, const int *cards, int count)
{
    uint64_t lowered[HW_MAX_CARDS];
    memcpy(lowered, sim_hw.mps.limit_bytes, sizeof lowered);
    for (const char *at = text; *at;) {
        char *end;
        unsigned long device = strtoul(at, &end, 10);
        if (end == at || *end != '=' || device >= (unsigned long)count)
            return;
        uint64_t bytes = amount(end + 1, &end);
        if (!bytes || (*end && *end != ','))
            return;
        uint64_t *limit = &lowered[cards[device]];
        *limit = *limit && *limit < bytes ? *limit : bytes;
        at = end + (*end == ',');
    }
    memcpy(sim_hw.mps.limit_bytes, lowered, sizeof lowered);
}

/* "PID START PERCENT BYTES,BYTES ...": the server, and what each of its clients may have at most of each device. */
static CUresult take(const char *answer)
{
    unsigned long long pid, start, percent;
    int at = 0, cards[HW_MAX_CARDS], count = 0;
    if (sscanf(answer, "%llu %llu %llu %n", &pid, &start, &percent, &at) != 3 || !pid || !at)
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    sim_hw.mps = (struct hw_mps){.pid = pid, .start_time = start, .percent = percent};
    for (uint64_t i = 0; i < sim_hw.file->cards; i++)
        if (hw_server(&sim_hw, &sim_hw.file->card[i]))
            cards[count++] = (int)i;
    const char *next = answer + at;
    for (int i = 0; i < count && *next; i++) {
        char *end;
        sim_hw.mps.limit_bytes[cards[i]] = strtoull(next, &end, 10);
        next = end + (*end == ',');
    }
    const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double asked = own ? strtod(own, NULL) : 0;
    if (asked >= 1 && asked < (double)percent)
        sim_hw.mps.percent = (uint64_t)asked;
    const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    if (limits)
        lower_limits(limits, cards, count);
    return count ? CUDA_SUCCESS : CUDA_ERROR_MPS_SERVER_NOT_READY;
}

/* Ask the daemon for a server, if there is a daemon. The connection stays: by its end the daemon knows of ours. */
CUresult sim_join_mps(void)
{
    static int fd = -1;
    if (fd >= 0)
        close(fd);
    fd = dial();
    if (fd < 0)
        return CUDA_SUCCESS;
    char answer[LONGEST_ANSWER];
    ssize_t length = send(fd, "join", 4, MSG_NOSIGNAL) == 4 ? recv(fd, answer, sizeof answer - 1, 0) : -1;
    answer[length > 0 ? length : 0] = 0;
    return length > 0 ? take(answer) : CUDA_ERROR_MPS_CONNECTION_FAILED;
}
