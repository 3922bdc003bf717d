/* SPDX-License-Identifier: Apache-2.0 */
/* One process of a crowd that allocates and frees at random through many families, in many threads.
 *
 *   crowd BOARD INDEX PROCESSES SECONDS THREADS SEED FAMILY...
 *
 * BOARD is a file of 8192 zero bytes that the crowd shares. All begin once each has its context, and
 * stop holding what they have: then the board says how many rest, and waits for its word `proceed`.
 * Prints `calls refused other`, and an error that is neither success nor out of memory on stderr.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "families.h"

#define HELD 12
#define NEIGHBOURS 8 /* whose memory is opened: the simulated driver lets 32 processes hold one */
#define CROWD 64

struct board {
    uint32_t ready, resting, proceed, done;
    uint8_t pad[4080];
    struct cu_ipc_handle handle[CROWD];
};

static struct board *board;
static int index_here, processes;
static enum family families[FAMILY_COUNT];
static int family_count;
static CUcontext context;
static double until;
static long calls, refused, other;
static pthread_barrier_t resting, proceeding;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void wait_for(uint32_t *count, uint32_t wanted)
{
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < wanted)
        usleep(1000);
}

/* Count the answer; 1 where it was success. */
static int counted(CUresult rc, const char *what, enum family family)
{
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    if (rc && rc != CUDA_ERROR_OUT_OF_MEMORY)
        fprintf(stderr, "crowd: %s %s answered %d\n", what, family_name(family), rc);
    if (rc)
        __atomic_fetch_add(rc == CUDA_ERROR_OUT_OF_MEMORY ? &refused : &other, 1, __ATOMIC_RELAXED);
    return rc == CUDA_SUCCESS;
}

static void take(struct held *h, CUstream stream, unsigned *seed)
{
    enum family family = families[(unsigned)rand_r(seed) % (unsigned)family_count];
    struct wish wish = {.family = family, .bytes = 1 + (size_t)rand_r(seed) % (40 * MIB), .stream = stream};
    int who = (index_here + 1 + rand_r(seed) % NEIGHBOURS) % processes;
    if (family == FAMILY_imported && who == index_here)
        return;
    if (family == FAMILY_context && rand_r(seed) % 8) /* large, and slow to make */
        return;
    wish.peer = board->handle[who];
    if (!counted(family_take(h, &wish), "taking", family))
        h->family = NOTHING;
}

static void give(struct held *h, CUstream stream)
{
    enum family family = h->family;
    (void)counted(family_give(h, stream), "giving", family);
}

static void *work(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct held held[HELD] = {0};
    CUstream stream;
    if (cuCtxSetCurrent(context) || cuStreamCreate(&stream, 1))
        exit(3);
    while (now() < until) {
        struct held *h = &held[rand_r(&seed) % HELD];
        h->family ? give(h, stream) : take(h, stream, &seed);
    }
    (void)cuStreamSynchronize(stream);
    pthread_barrier_wait(&resting);
    pthread_barrier_wait(&proceeding);
    for (int i = 0; i < HELD; i++)
        if (held[i].family)
            give(&held[i], stream);
    (void)cuStreamSynchronize(stream);
    return NULL;
}

/* Join the crowd: a context, something that others may open, and the others. */
static CUdeviceptr join(void)
{
    CUdevice device;
    CUdeviceptr mine;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context) || cuMemAlloc_v2(&mine, 2 * MIB) || cuIpcGetMemHandle(&board->handle[index_here], mine))
        exit(1);
    __atomic_fetch_add(&board->ready, 1, __ATOMIC_ACQ_REL);
    wait_for(&board->ready, (uint32_t)processes);
    return mine;
}

/* All threads hold what they have; the ledger are looked at from outside; then all is given back. */
static void rest(pthread_t *thread, int threads)
{
    pthread_barrier_wait(&resting);
    (void)cuCtxSynchronize();
    __atomic_fetch_add(&board->resting, 1, __ATOMIC_ACQ_REL);
    wait_for(&board->proceed, 1);
    pthread_barrier_wait(&proceeding);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    __atomic_fetch_add(&board->done, 1, __ATOMIC_ACQ_REL);
    wait_for(&board->done, (uint32_t)processes); /* others may still map what we exported */
}

int main(int argc, char **argv)
{
    pthread_t thread[64];
    int fd = argc > 7 ? open(argv[1], O_RDWR) : -1, threads = argc > 7 ? atoi(argv[5]) : 0;
    board = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED || threads < 1 || threads > 64 || (processes = atoi(argv[3])) > CROWD)
        return 2;
    index_here = atoi(argv[2]);
    for (int i = 7; i < argc; i++)
        if ((families[family_count++] = family_named(argv[i])) == NOTHING)
            return 2;
    CUdeviceptr mine = join();
    until = now() + atof(argv[4]);
    pthread_barrier_init(&resting, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&proceeding, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)((unsigned)atoi(argv[6]) * 64 + (unsigned)i));
    rest(thread, threads);
    (void)cuMemFree_v2(mine);
    (void)cuDeviceGraphMemTrim(0);
    (void)cuCtxSynchronize();
    printf("%ld %ld %ld\n", calls, refused, other);
    return cuDevicePrimaryCtxRelease_v2(0);
}
