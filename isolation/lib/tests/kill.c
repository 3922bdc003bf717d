/* SPDX-License-Identifier: Apache-2.0 */
/* Kills processes inside ledger steps and checks the ledger.
 *
 *   kill step           at every instruction boundary of a reserve and a refund
 *   kill take EVERY     at every EVERY-th boundary of taking a slot
 *   kill storm SECONDS PROCESSES THREADS   at random, under contention
 *   kill fork           fork, exec, close-all and a foreign close: does the slot's lock hold?
 *
 * Prints one line of figures; exit status 1 where the ledger were wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../src/ledger.h"
#include "../src/slot.h"
#include "../src/sys.h"

static char path[] = "/dev/shm/gs-kill-XXXXXX";
static struct gs_region *region;

static void create(void)
{
    static struct gs_region fresh;
    fresh = (struct gs_region){.magic = GS_REGION_MAGIC, .major = GS_ABI_MAJOR, .header_bytes = 4096,
        .file_bytes = sizeof fresh, .card_offset = offsetof(struct gs_region, cards),
        .card_stride = sizeof(struct gs_card), .card_count = GS_CARDS,
        .slot_offset = offsetof(struct gs_region, slots), .slot_stride = sizeof(struct gs_slot),
        .slot_count = GS_SLOTS, .ring_offset = offsetof(struct gs_region, ring),
        .ring_stride = sizeof(struct gs_record), .ring_length = GS_RING, .lane_count = GS_LANES,
        .lock_offset = GS_LOCK_OFFSET};
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, &fresh, sizeof fresh) != sizeof fresh)
        exit(2);
    close(fd);
    region = gs_region_map(path);
    if (!region)
        exit(2);
}

/* Bytes by which card 0 differs from the sum of its slots, once the step under way is finished. */
static int64_t difference(void)
{
    int64_t sum = 0;
    gs_settle(region, 0);
    for (uint32_t i = 0; i < region->slots_high; i++)
        sum += gs_slot_used(region, i, 0);
    return (int64_t)gs_used(region, 0) - sum;
}

static void work(struct gs_account *account)
{
    gs_reserve(account, 0, 5, 1000);
    gs_refund(account, 0, 5);
}

static void victim(void (*inside)(void))
{
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    inside();
    _exit(0);
}

static void reserve_and_refund(void)
{
    static uint8_t busy[GS_CARDS][GS_LANES];
    struct gs_account account = {.region = region, .busy = busy};
    if (gs_slot_take(region, path, &account.slot) < 0)
        _exit(3);
    raise(SIGSTOP);
    work(&account);
    raise(SIGSTOP);
}

static void take(void)
{
    uint32_t slot;
    raise(SIGSTOP);
    if (gs_slot_take(region, path, &slot) < 0)
        _exit(3);
    raise(SIGSTOP);
}

/* Let a victim run `steps` instructions past its first stop, kill it there. 1 where it got there. */
static int kill_after(void (*inside)(void), long steps)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        victim(inside);
    waitpid(pid, &status, 0);
    long done = 0;
    int there = 1;
    for (; done < steps && there; done++) {
        ptrace(PTRACE_SINGLESTEP, pid, 0, 0);
        waitpid(pid, &status, 0);
        there = WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return there;
}

static int stepped(void (*inside)(void), long every)
{
    long at = 0, wrong = 0, left = 0;
    for (;; at += every) {
        int there = kill_after(inside, at);
        wrong += difference() != 0;
        gs_reap(region, path, -1, NULL);
        left += gs_used(region, 0) != 0 || region->slots[0].state != GS_SLOT_FREE;
        if (!there)
            break;
    }
    printf("boundaries %ld wrong %ld left %ld\n", at / every, wrong, left);
    return wrong || left || at / every < 20;
}

static struct gs_account storm_desk;
static uint8_t storm_busy[GS_CARDS][GS_LANES];

static void *storm_thread(void *seed)
{
    unsigned state = (unsigned)(uintptr_t)seed;
    uint64_t held[16] = {0};
    for (;;) {
        int i = rand_r(&state) % 16;
        if (held[i]) {
            gs_refund(&storm_desk, 0, held[i]);
            held[i] = 0;
        } else {
            uint64_t want = 1 + rand_r(&state) % 100;
            held[i] = gs_reserve(&storm_desk, 0, want, 4000) == 0 ? want : 0;
        }
        if (gs_used(region, 0) > 4000 * GS_GRANULE)
            __atomic_fetch_add(&region->cards[1].denied, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static pid_t storm_child(int threads, unsigned seed)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    if (nice(10) < 0)
        _exit(3);
    storm_desk = (struct gs_account){.region = region, .busy = storm_busy};
    if (gs_slot_take(region, path, &storm_desk.slot) < 0)
        _exit(3);
    pthread_t thread;
    for (int i = 1; i < threads; i++)
        pthread_create(&thread, NULL, storm_thread, (void *)(uintptr_t)(seed * 64 + i));
    storm_thread((void *)(uintptr_t)(seed * 64));
    _exit(0);
}

static int storm(double seconds, int processes, int threads)
{
    pid_t child[64];
    unsigned seed = 1;
    const long least = 16; // also where a busy machine has hardly run in the time given
    long kills = 0, wrong = 0;
    if (processes > 64)
        return 2;
    for (int i = 0; i < processes; i++)
        child[i] = storm_child(threads, seed++);
    double end = (double)gs_now_ns() + seconds * 1e9;
    while ((double)gs_now_ns() < end || kills < least) {
        int i = (int)(seed * 2654435761U >> 8) % processes;
        usleep(seed * 40503U % 900);
        kill(child[i], SIGKILL);
        waitpid(child[i], NULL, 0);
        kills++;
        if (seed % 7 == 0)
            gs_reap(region, path, -1, NULL);
        child[i] = storm_child(threads, seed++);
    }
    for (int i = 0; i < processes; i++) {
        kill(child[i], SIGKILL);
        waitpid(child[i], NULL, 0);
    }
    wrong += difference() != 0;
    gs_reap(region, path, -1, NULL);
    wrong += gs_used(region, 0) != 0 || difference() != 0;
    printf("kills %ld wrong %ld overshoot %lu\n", kills, wrong, (unsigned long)region->cards[1].denied);
    return wrong || region->cards[1].denied;
}

static int held_outside(uint32_t slot)
{
    int fd = open(path, O_RDONLY), held = gs_byte_locked(fd, GS_LOCK_OFFSET + slot);
    close(fd);
    return held;
}

static const char *const cases[] = {"plain", "foreign close", "close all", "fork", "unmapped", "exec", "exit"};
enum { PLAIN, FOREIGN_CLOSE, CLOSE_ALL, FORK, UNMAPPED, EXEC, EXIT, CASES };

/* Take away the mapping that keeps the lock: the one page of the region that may only be read. */
static void unmap_anchor(void)
{
    char line[512];
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, path) && strstr(line, "r--s") && sscanf(line, "%lx-%lx", &from, &to) == 2)
            munmap((void *)from, to - from);
    if (maps)
        fclose(maps);
}

/* Take a slot, do `what`, say so, wait to be killed. */
static void live(int what, int ready)
{
    uint32_t slot;
    if (gs_slot_take(region, path, &slot) < 0 || slot != 0)
        _exit(3);
    if (what == FOREIGN_CLOSE)
        close(open(path, O_RDWR));
    if (what == FORK && fork() == 0) {
        sleep(2);
        _exit(0);
    }
    if (what == UNMAPPED)
        unmap_anchor();
    if (write(ready, "x", 1) != 1)
        _exit(3);
    for (int fd = 0; what == CLOSE_ALL && fd < 64; fd++)
        close(fd);
    if (what == EXEC)
        execl("/bin/sleep", "sleep", "60", NULL);
    if (what != EXIT)
        sleep(60);
    _exit(0);
}

/* Wait at most two seconds, in steps of a millisecond, for the lock to be held or not. 1 where it came to that. */
static int comes_to(int held)
{
    for (int i = 0; i < 2000 && held_outside(0) != held; i++)
        usleep(1000);
    return held_outside(0) == held;
}

/* One case: the lock while the process lives and after it was killed. 1 where both were right. */
static int lives_and_dies(int what)
{
    int ready[2];
    char byte;
    siginfo_t death;
    if (pipe(ready) < 0)
        exit(2);
    pid_t pid = fork();
    if (pid == 0)
        live(what, ready[1]);
    close(ready[1]); /* or a child that could not take its slot would be waited for in vain */
    int right = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    usleep(20000);
    right &= comes_to(what < UNMAPPED); /* exec and exit have yet to come, perhaps */
    if (what == EXIT)
        right &= waitid(P_PID, (id_t)pid, &death, WEXITED | WNOWAIT) == 0;
    gs_reap(region, path, -1, NULL);
    right &= (region->slots[0].state == GS_SLOT_LIVE) == (what < EXEC); /* exec: the image that held it is gone */
    kill(pid, SIGKILL);
    right &= waitid(P_PID, (id_t)pid, &death, WEXITED | WNOWAIT) == 0; /* a zombie now: dead, and nobody's yet */
    right &= comes_to(0); /* somebody who reads its /proc may keep the address space a little longer */
    gs_reap(region, path, -1, NULL);
    right &= region->slots[0].state == GS_SLOT_FREE;
    waitpid(pid, NULL, 0);
    return right;
}

static int liveness(void)
{
    int wrong = 0;
    for (int what = 0; what < CASES; what++)
        if (!lives_and_dies(what))
            printf("wrong: %s\n", cases[what]), wrong++;
    printf("cases %d wrong %d\n", CASES, wrong);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    int rc = 2;
    create();
    if (argc > 1 && !strcmp(argv[1], "step"))
        rc = stepped(reserve_and_refund, 1);
    else if (argc > 2 && !strcmp(argv[1], "take"))
        rc = stepped(take, atol(argv[2]));
    else if (argc > 4 && !strcmp(argv[1], "storm"))
        rc = storm(atof(argv[2]), atoi(argv[3]), atoi(argv[4]));
    else if (argc > 1 && !strcmp(argv[1], "fork"))
        rc = liveness();
    unlink(path);
    return rc;
}
