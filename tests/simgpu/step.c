/* SPDX-License-Identifier: Apache-2.0 */
/* Kill a client of the simulated driver after every instruction of an operation, and ask the records.
 *
 *     step LIBCUDA LIBHARDWARE HARDWARE OPERATION STRIDE
 *
 * Prints `instructions N, wrong M`; exit status 0 if no kill left anything behind. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void *cuda;

static int call(const char *name, uint64_t a, uint64_t b, uint64_t c)
{
    int (*function)(uint64_t, uint64_t, uint64_t) = (int (*)(uint64_t, uint64_t, uint64_t))dlsym(cuda, name);
    return function ? function(a, b, c) : 500;
}

static void need(int status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %d\n", what, status);
        _exit(3);
    }
}

/* What is stepped through. */
static void operate(const char *operation)
{
    uint64_t pointer = 0;
    if (!strcmp(operation, "large") || !strcmp(operation, "small")) {
        need(call("cuMemAlloc_v2", (uint64_t)&pointer, *operation == 'l' ? 4 << 20 : 4096, 0), "alloc");
        need(call("cuMemFree_v2", pointer, 0, 0), "free");
    } else if (!strcmp(operation, "pool")) {
        need(call("cuMemAllocAsync", (uint64_t)&pointer, 4 << 20, 0), "alloc");
        need(call("cuMemFreeAsync", pointer, 0, 0), "free");
        need(call("cuCtxSynchronize", 0, 0, 0), "synchronize");
    } else {
        uint32_t prop[8] = {1, 1, 1, 0}; /* pinned, can be exported, on device 0 */
        need(call("cuMemCreate", (uint64_t)&pointer, 4 << 20, (uint64_t)prop), "create");
        need(call("cuMemRelease", pointer, 0, 0), "release");
    }
}

/* The client: ready, stopped, then the operation. */
static void client(const char *libcuda, const char *operation)
{
    uint64_t context;
    cuda = dlopen(libcuda, RTLD_NOW);
    need(!cuda, "dlopen");
    need(call("cuInit", 0, 0, 0), "cuInit");
    need(call("cuDevicePrimaryCtxRetain", (uint64_t)&context, 0, 0), "retain");
    need(call("cuCtxSetCurrent", context, 0, 0), "current");
    uint64_t pointer; /* keeps a granule for small ones: filling a new one takes ten thousand steps */
    if (!strcmp(operation, "small"))
        need(call("cuMemAlloc_v2", (uint64_t)&pointer, 512, 0), "alloc");
    operate(operation); /* once unseen: lazy binding and first mappings are not the point */
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    operate(operation);
    _exit(0);
}

/* Let a fresh client do `steps` instructions and kill it: 1, or 0 if it came to its end before. */
static int kill_after(const char *libcuda, const char *operation, long steps)
{
    int status;
    pid_t pid = fork();
    if (!pid)
        client(libcuda, operation);
    waitpid(pid, &status, 0);
    for (long i = 0; i < steps && WIFSTOPPED(status); i++) {
        ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
        waitpid(pid, &status, 0);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status))
        exit(3);
    int alive = WIFSTOPPED(status);
    if (alive) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return alive;
}

int main(int argc, char **argv)
{
    void *hardware = argc == 6 ? dlopen(argv[2], RTLD_NOW) : NULL;
    if (!hardware)
        return 2;
    int (*open_box)(const char *, void **) = (int (*)(const char *, void **))dlsym(hardware, "simgpu_open");
    int (*settle)(void *) = (int (*)(void *))dlsym(hardware, "simgpu_settle");
    uint64_t (*used)(void *, uint64_t) = (uint64_t (*)(void *, uint64_t))dlsym(hardware, "simgpu_used");
    void *box;
    long wrong = 0, steps = 1;
    if (open_box(argv[3], &box))
        return 2;
    for (; kill_after(argv[1], argv[4], steps); steps += atol(argv[5])) {
        settle(box);
        settle(box); /* the dead are found, then what is due comes back */
        if (used(box, 0)) {
            wrong++;
            fprintf(stderr, "killed after %ld: %llu bytes left\n", steps, (unsigned long long)used(box, 0));
        }
    }
    printf("instructions %ld, wrong %ld\n", steps, wrong);
    return wrong != 0;
}
