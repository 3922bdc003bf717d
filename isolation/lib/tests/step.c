/* SPDX-License-Identifier: Apache-2.0 */
/* Kills a process after every single instruction that the library executes on a family's path from
 * taking memory to giving it back, and judges both ledgers each time.
 *
 *   step HARDWARE.so FAMILY SAMPLES SEED   SAMPLES boundaries at random; 0: every one
 *
 * FAMILY is one of families.h; or `primary`: the device's own context and back; or `begin`: all of it
 * from the first call of a process on, which is long.
 * Instructions of the driver and of libc are passed over in one go: only ours are counted.
 * Prints `boundaries N killed N wrong N left N wedged N`; exit status 1 where a figure is not 0 that
 * should be, 77 on a machine that this is not written for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "judge.h"

#if defined(__x86_64__)

#define PATIENCE 30 /* seconds for one run */
#define ENDLESS 2000000L

enum place { LIBRARY, PROGRAM, ELSEWHERE };
enum outcome { KILLED, ENDED, WEDGED };

static struct {
    uint64_t from, to;
    enum place place;
} known[16];
static int knowns;
static int from_the_start; /* `begin`, not `primary` */

/* Where the library's and our own code lie; children have it at the same place. */
static void find_code(void)
{
    char line[512], bits[8], self[256];
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length < 0 ? 0 : length] = 0;
    while (maps && knowns < 16 && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, bits) != 3 || !strchr(bits, 'x'))
            continue;
        int ours = strstr(line, "libgpushare") != NULL;
        if (!ours && !strstr(line, self))
            continue;
        known[knowns].from = from;
        known[knowns].to = to;
        known[knowns++].place = ours ? LIBRARY : PROGRAM;
    }
    if (maps)
        fclose(maps);
}

static enum place place_of(uint64_t at)
{
    for (int i = 0; i < knowns; i++)
        if (at >= known[i].from && at < known[i].to)
            return known[i].place;
    return ELSEWHERE;
}

static void victim(enum family family)
{
    struct held held;
    CUstream stream = NULL;
    CUcontext context;
    if (!from_the_start)
        judge_join(&stream);
    if (!family && !from_the_start && cuDevicePrimaryCtxRelease_v2(0)) /* all is known and found by now */
        _exit(5);
    struct wish wish = {.family = family, .bytes = 3 * MIB, .stream = stream, .peer = judge_shared->handle};
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    if (from_the_start)
        judge_join(&stream);
    else if (!family && cuDevicePrimaryCtxRetain(&context, 0))
        _exit(5);
    if (family && (family_take(&held, &wish) || family_give(&held, stream) || cuStreamSynchronize(stream)))
        _exit(5);
    if (!family && cuDevicePrimaryCtxRelease_v2(0))
        _exit(5);
    raise(SIGSTOP);
    _exit(0);
}

static void ignore(int signal) { (void)signal; }

/* Let it run on; 1 where it stopped at a trap, 0 at anything else, -1 where it does not stop. */
static int resume(int how, pid_t pid)
{
    int status;
    ptrace(how, pid, 0, 0);
    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

/* Run a function of somebody else's to its end: to the address that it returns to. */
static int pass_over(pid_t pid, uint64_t stack)
{
    struct user_regs_struct regs;
    uint64_t back = (uint64_t)ptrace(PTRACE_PEEKDATA, pid, stack, 0);
    long word = ptrace(PTRACE_PEEKTEXT, pid, back, 0);
    ptrace(PTRACE_POKETEXT, pid, back, (word & ~0xffL) | 0xcc); /* int3 */
    int rc = resume(PTRACE_CONT, pid);
    ptrace(PTRACE_POKETEXT, pid, back, word);
    if (rc == 1) {
        ptrace(PTRACE_GETREGS, pid, 0, &regs);
        regs.rip = back;
        ptrace(PTRACE_SETREGS, pid, 0, &regs);
    }
    return rc;
}

/* Let a victim run until `wanted` of the library's instructions are done, and kill it there. How far
 * it came is added to `*done`. */
static enum outcome run(enum family family, long wanted, long *done)
{
    struct user_regs_struct regs;
    int status, rc = 1;
    pid_t pid = fork();
    if (pid == 0)
        victim(family);
    alarm(PATIENCE);
    rc = waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) ? 1 : -1;
    enum place before = ELSEWHERE;
    for (long steps = 0; rc == 1 && *done < wanted; steps++) {
        ptrace(PTRACE_GETREGS, pid, 0, &regs);
        enum place now = place_of(regs.rip);
        if (now == ELSEWHERE && before != ELSEWHERE) {
            rc = pass_over(pid, regs.rsp);
            continue; /* `before` stays: it is where it was called from */
        }
        *done += now == LIBRARY;
        before = now;
        rc = steps > ENDLESS ? -1 : resume(PTRACE_SINGLESTEP, pid);
    }
    alarm(0);
    kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) != pid || WIFSTOPPED(status))
        continue;
    int ended = rc == 0 && !(WIFEXITED(status) && WEXITSTATUS(status));
    return rc == 1 ? KILLED : ended ? ENDED : WEDGED;
}

int main(int argc, char **argv)
{
    long total = 0, wrong = 0, left = 0, wedged = 0, killed = 0;
    if (argc < 5)
        return 2;
    enum family family = family_named(argv[2]);
    from_the_start = !strcmp(argv[2], "begin");
    if (!family && !from_the_start && strcmp(argv[2], "primary"))
        return 2;
    find_code();
    judge_begin(argv[1]);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = ignore}, NULL); /* waitpid is to be interrupted */
    pid_t holder = judge_holder();
    uint64_t ledger = judge_ledger(), truth = judge_truth();
    unsigned seed = (unsigned)atoi(argv[4]);
    wedged += run(family, ENDLESS, &total) != ENDED;
    left += !judge_settles(ledger, truth);
    long samples = atol(argv[3]), runs = samples && samples < total ? samples : total;
    for (long i = 0, ended = 0; i < runs; i++) {
        long done = 0;
        enum outcome outcome = run(family, runs == total ? i + 1 : 1 + rand_r(&seed) % total, &done);
        wedged += outcome == WEDGED;
        killed += outcome == KILLED;
        if (outcome == ENDED && runs < total && ended++ < samples)
            i--; /* no two runs are of quite the same length: this one was over before its turn */
        wrong += judge_difference() != 0;
        left += !judge_settles(ledger, truth) || judge_difference() != 0;
    }
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    left += !judge_settles(0, 0) || ledger != truth;
    printf("boundaries %ld killed %ld wrong %ld left %ld wedged %ld\n", total, killed, wrong, left, wedged);
    return wrong || left || wedged || total < 20;
}

#else

int main(void) { return 77; }

#endif
