/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "judge.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#include "../src/slot.h"

struct gs_region *judge_region;
struct shared *judge_shared;

static void *box;
static int (*settle_box)(void *);
static uint64_t (*used_of)(void *, uint64_t);

/* No process of these programs forks while it is inside the library. */
void gs_after_fork(void);
void gs_after_fork(void) {}

/* Open both ledgers: the region and the hardware named by the environment. Ends the program where one is missing. */
void judge_begin(const char *hardware)
{
    void *library = dlopen(hardware, RTLD_NOW);
    int (*open_box)(const char *, void **) = library ? (int (*)(const char *, void **))dlsym(library, "simgpu_open") : NULL;
    settle_box = library ? (int (*)(void *))dlsym(library, "simgpu_settle") : NULL;
    used_of = library ? (uint64_t(*)(void *, uint64_t))dlsym(library, "simgpu_used") : NULL;
    judge_region = gs_region_map(getenv("GPUSHARE_REGION"));
    judge_shared = mmap(NULL, sizeof *judge_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!open_box || !settle_box || !used_of || !judge_region || judge_shared == MAP_FAILED ||
        open_box(getenv("GPUSHARE_SIMGPU"), &box)) {
        fprintf(stderr, "no ledger to judge\n");
        exit(2);
    }
}

/* Bytes by which card 0 differs from the sum of its slots, once the step under way is finished. */
int64_t judge_difference(void)
{
    int64_t sum = 0;
    gs_settle(judge_region, 0);
    for (uint32_t i = 0; i < judge_region->slots_high; i++)
        sum += gs_slot_used(judge_region, i, 0);
    return (int64_t)gs_used(judge_region, 0) - sum;
}

uint64_t judge_ledger(void) { return gs_used(judge_region, 0); }

/* Bytes on card 0 as the hardware counts them, the dead found first. */
uint64_t judge_truth(void)
{
    settle_box(box);
    return used_of(box, 0);
}

void judge_reap(void) { (void)gs_reap(judge_region, getenv("GPUSHARE_REGION"), -1, NULL); }

/* Do both ledgers say this once the dead are reaped? A dead address space may be kept for a moment by
 * whoever reads its /proc. */
int judge_settles(uint64_t ledger, uint64_t truth)
{
    for (int tries = 0; tries < 200; tries++) {
        judge_reap();
        if (judge_ledger() == ledger && judge_truth() == truth)
            return 1;
        usleep(1000);
    }
    return 0;
}

/* In a child: a context and a stream. */
void judge_join(CUstream *stream)
{
    CUcontext context;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuStreamCreate(stream, 1))
        _exit(4);
}

/* A process that lives all the time, holds memory, and exports it. */
pid_t judge_holder(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        CUdeviceptr at;
        CUstream stream;
        judge_join(&stream);
        if (cuMemAlloc_v2(&at, 8 * MIB) || cuIpcGetMemHandle(&judge_shared->handle, at))
            _exit(4);
        __atomic_store_n(&judge_shared->ready, 1, __ATOMIC_RELEASE);
        for (;;)
            pause();
    }
    for (int i = 0; i < 5000 && !__atomic_load_n(&judge_shared->ready, __ATOMIC_ACQUIRE); i++)
        usleep(1000);
    if (!judge_shared->ready)
        exit(2);
    return pid;
}
