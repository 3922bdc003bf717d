/* SPDX-License-Identifier: Apache-2.0 */
/* Kills processes of many threads that go through all families, at random and under contention, and
 * judges the ledger while they live and after they are gone.
 *
 *   storm HARDWARE.so KILLS PROCESSES THREADS PACE SEED [FAMILY...]
 *
 * A kill every PACE microseconds, at random up to twice that. Without a family: all of them.
 * Every 25 kills all are stopped for a moment: the card's word must be the sum of the living slots'.
 * Nobody may be without an answer for as long as PATIENCE. At the end both ledgers are those of the one
 * process that lived on, and a fresh one goes through every family.
 * Prints `kills N checks N wrong N wedged N left N calls N peak N` (bytes charged at most); exit status 1 where something was wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "judge.h"

#define MAX_PROCESSES 64
#define HELD 8
#define OPENERS 16 /* of the holder's memory: the simulated driver lets 32 processes hold one */
#define PATIENCE 20.0 /* seconds */

static struct {
    pid_t pid;
    uint32_t progress;
    double moved; /* when its progress was seen to move */
} child[MAX_PROCESSES];
static int processes, threads, own_index;
static CUcontext context;
static enum family families[FAMILY_COUNT];
static int family_count;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *work(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct held held[HELD] = {0};
    CUstream stream;
    if (cuCtxSetCurrent(context) || cuStreamCreate(&stream, 1))
        _exit(4);
    for (;;) {
        struct held *h = &held[rand_r(&seed) % HELD];
        struct wish wish = {.family = families[rand_r(&seed) % (unsigned)family_count], .stream = stream,
                            .bytes = 1 + (size_t)rand_r(&seed) % (20 * MIB), .peer = judge_shared->handle};
        if (wish.family == FAMILY_imported && own_index >= OPENERS)
            wish.family = FAMILY_exported;
        CUresult rc = h->family ? family_give(h, stream) : family_take(h, &wish);
        if (rc)
            h->family = NOTHING;
        if (rc && rc != CUDA_ERROR_OUT_OF_MEMORY)
            fprintf(stderr, "storm: %s answered %d\n", family_name(wish.family), rc), _exit(6);
        __atomic_fetch_add(&judge_shared->progress[own_index], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* A new process in this place, allocating. */
static void start(int i, unsigned seed)
{
    pid_t pid = fork();
    if (pid == 0) {
        CUstream stream;
        pthread_t thread;
        own_index = i;
        /* the dead may still hold the card's or the promise's room: try again, as a program would */
        while (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0)) {
            __atomic_fetch_add(&judge_shared->progress[i], 1, __ATOMIC_RELAXED); /* a refusal is an answer */
            usleep(1000);
        }
        judge_join(&stream);
        for (int t = 1; t < threads; t++)
            pthread_create(&thread, NULL, work, (void *)(uintptr_t)(seed * 64 + (unsigned)t));
        work((void *)(uintptr_t)(seed * 64));
    }
    child[i].pid = pid;
    child[i].moved = now();
}

/* End a process; 1 where it had ended by itself, which nobody should. */
static int end(int i)
{
    int status;
    kill(child[i].pid, SIGKILL);
    waitpid(child[i].pid, &status, 0);
    return !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
}

/* The card's word and the sum of the slots, all processes being stopped: 1 where they differ. */
static int differs(void)
{
    siginfo_t stopped;
    for (int i = 0; i < processes; i++) {
        kill(child[i].pid, SIGSTOP);
        waitid(P_PID, (id_t)child[i].pid, &stopped, WSTOPPED | WEXITED | WNOWAIT);
    }
    int wrong = judge_difference() != 0;
    judge_reap();
    wrong |= judge_difference() != 0;
    for (int i = 0; i < processes; i++)
        kill(child[i].pid, SIGCONT);
    return wrong;
}

/* Children that have not moved for too long. */
static int still(void)
{
    int count = 0;
    for (int i = 0; i < processes; i++) {
        uint32_t progress = __atomic_load_n(&judge_shared->progress[i], __ATOMIC_RELAXED);
        if (progress != child[i].progress) {
            child[i].progress = progress;
            child[i].moved = now();
        }
        if (now() - child[i].moved > PATIENCE) {
            count++;
            child[i].moved = now();
        }
    }
    return count;
}

/* A process that comes after all this goes through every family. 1 where it can. */
static int follows(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        CUstream stream;
        alarm((unsigned)PATIENCE);
        judge_join(&stream);
        for (int family = 1; family < FAMILY_COUNT; family++) {
            struct held held;
            struct wish wish = {.family = (enum family)family, .bytes = 3 * MIB, .stream = stream,
                                .peer = judge_shared->handle};
            if (family_take(&held, &wish) || family_give(&held, stream))
                _exit(family);
        }
        _exit(cuDevicePrimaryCtxRelease_v2(0));
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The same where a driver's figure is added to the ledger: it may be from before the last kill, for a sample. */
static int follows_soon(void)
{
    double end = now() + PATIENCE;
    int can = follows();
    for (; !can && now() < end; can = follows())
        usleep(50000);
    return can;
}

int main(int argc, char **argv)
{
    long kills = 0, checks = 0, wrong = 0, wedged = 0, left = 0, calls = 0;
    if (argc < 7 || (processes = atoi(argv[3])) > MAX_PROCESSES || (threads = atoi(argv[4])) < 1)
        return 2;
    for (int i = 7; i < argc; i++)
        if (family_count == FAMILY_COUNT || (families[family_count++] = family_named(argv[i])) == NOTHING)
            return 2;
    for (int i = 1; argc == 7 && i < FAMILY_COUNT; i++)
        families[family_count++] = (enum family)i;
    judge_begin(argv[1]);
    pid_t holder = judge_holder();
    uint64_t ledger = judge_ledger(), truth = judge_truth();
    unsigned pace = (unsigned)atoi(argv[5]), seed = (unsigned)atoi(argv[6]), next = seed * 100000;
    for (int i = 0; i < processes; i++)
        start(i, next++);
    for (long wanted = atol(argv[2]); kills < wanted; kills++) {
        usleep((useconds_t)rand_r(&seed) % (2 * pace));
        int i = rand_r(&seed) % processes;
        wrong += end(i);
        start(i, next++);
        if (kills % 25 == 24) {
            wrong += differs();
            wedged += still();
            checks++;
        }
    }
    for (int i = 0; i < processes; i++)
        wrong += end(i);
    wrong += judge_difference() != 0;
    left += !judge_settles(ledger, truth);
    wedged += !(argc == 7 ? follows() : follows_soon());
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    left += !judge_settles(0, 0);
    for (int i = 0; i < processes; i++)
        calls += judge_shared->progress[i];
    printf("kills %ld checks %ld wrong %ld wedged %ld left %ld calls %ld peak %lu\n", kills, checks, wrong, wedged, left,
           calls, judge_region->cards[0].peak_bytes);
    return wrong || wedged || left;
}
