/* SPDX-License-Identifier: Apache-2.0 */
/* Time for programs of a test, apart from the machine's: preloaded, it answers for the clocks and for sleeping.
 *
 *     VIRTUAL_CLOCK=FILE LD_PRELOAD=virtual_clock.so PROGRAM
 *
 * Threads that take part (members) have a time each, in one file that all map. A member's time moves on when it
 * sleeps, and a little whenever it looks at a clock; it goes on running only while no other member is behind it. So
 * everything happens in the order of its time, whichever process this machine lets run first and however late, and
 * what nobody sleeps for takes no time at all. The clock stands until as many members have come as were announced.
 *
 * A member is who calls virtual_clock_join(), and whoever waits for a signal until a moment (a keeper). All others
 * see the clock of the members, and sleep a millisecond at most. A member must never wait for another one in any other way.
 * The library under test sleeps by a system call of its own: a filter hands that to us.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define SECOND 1000000000ull

enum {
    MEMBERS = 64,
    LOOK_NS = 50,      /* what a look at a clock takes */
    YIELD_NS = 1000,   /* and letting others run */
    AHEAD_NS = 50000,  /* how far a member may get by looking before the others are let catch up */
    CHECK_MS = 100,    /* real time after which one that waits asks whether the others live */
    PATIENCE_MS = 240000, /* real time without any progress, after which the story is given up */
};

struct member {
    uint32_t tid, pid;
    uint64_t at_ns;
    uint32_t bell;
    uint32_t unused;
};

struct story { /* mirrored in tests/support/virtual_clock.py */
    uint64_t now_ns;  /* monotonic */
    uint64_t real_ns; /* CLOCK_REALTIME is this much more */
    uint64_t expected, come;
    uint64_t turns;
    uint32_t ready, unused;
    pthread_mutex_t lock;
    struct member member[MEMBERS];
};

static struct story *story;
static __thread int me = -1;  /* index of this thread's member */
static __thread int held;     /* mutexes that this thread has */
static __thread uint64_t horizon; /* nobody else was behind this */
static int mine;              /* members of this process */
static uint64_t slip;         /* what looks and sleeps of threads that are no members took: who spins comes to an end */
static int (*real_lock)(pthread_mutex_t *), (*real_try)(pthread_mutex_t *), (*real_unlock)(pthread_mutex_t *);
static int (*real_sigtimedwait)(const sigset_t *, siginfo_t *, const struct timespec *);

static void find_real(void)
{
    *(void **)&real_try = dlsym(RTLD_NEXT, "pthread_mutex_trylock");
    *(void **)&real_unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    *(void **)&real_sigtimedwait = dlsym(RTLD_NEXT, "sigtimedwait");
    *(void **)&real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
}

static void enter(void)
{
    if (real_lock(&story->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&story->lock);
}

static void leave(void)
{
    real_unlock(&story->lock);
}

/* Real time, by calls that the filter lets through. */
static void real_nap(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / SECOND), (long)(ns % SECOND)};
    syscall(SYS_ppoll, NULL, 0, &t, NULL, 0);
}

static void give_up(const char *why)
{
    dprintf(2, "virtual clock: %s\n", why);
    _exit(99);
}

/* 1 while the thread exists and has not ended. */
static int lives(const struct member *member)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%u/task/%u/stat", member->pid, member->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *state = strrchr(text, ')');
    return state && state[1] && state[2] != 'Z' && state[2] != 'X';
}

/* Who is furthest behind, or -1; with `bury`, those who ended are no members any more. pre: entered. */
static int last(int except, int bury)
{
    int found = -1;
    for (int i = 0; i < MEMBERS; i++) {
        struct member *member = &story->member[i];
        if (!member->tid || i == except)
            continue;
        if (bury && !lives(member)) {
            member->tid = 0;
            continue;
        }
        if (found < 0 || member->at_ns < story->member[found].at_ns)
            found = i;
    }
    return found;
}

static void ring(int who)
{
    uint32_t *bell = &story->member[who].bell;
    __atomic_add_fetch(bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Go on only when nobody is behind us. */
static void take_turn(void)
{
    struct member *self = &story->member[me];
    uint64_t seen = 0;
    int waited_ms = 0, saved = errno;
    enter();
    for (;;) {
        int other = last(me, waited_ms >= CHECK_MS);
        horizon = other < 0 ? UINT64_MAX : story->member[other].at_ns;
        if (story->ready && self->at_ns <= horizon)
            break;
        if (story->ready)
            ring(other);
        uint32_t bell = __atomic_load_n(&self->bell, __ATOMIC_SEQ_CST);
        uint64_t turns = story->turns;
        waited_ms = turns == seen ? waited_ms + CHECK_MS : CHECK_MS;
        seen = turns;
        leave();
        struct timespec patience = {0, CHECK_MS * 1000000l};
        if (!syscall(SYS_futex, &self->bell, FUTEX_WAIT, bell, &patience, NULL, 0))
            waited_ms -= CHECK_MS;
        if (waited_ms > PATIENCE_MS)
            give_up("nobody moves");
        enter();
    }
    story->turns++;
    if (story->now_ns < self->at_ns)
        story->now_ns = self->at_ns;
    leave();
    errno = saved;
}

/* Sleep until a moment of the story. Under a lock nobody else could take a turn: then the time just passes. */
static void sleep_until(uint64_t ns)
{
    struct member *self = &story->member[me];
    if (ns > self->at_ns)
        __atomic_store_n(&self->at_ns, ns, __ATOMIC_RELEASE);
    if (!held)
        take_turn();
}

/* What time it is for this thread. */
static uint64_t look(void)
{
    if (me < 0)
        return __atomic_load_n(&story->now_ns, __ATOMIC_ACQUIRE) +
               __atomic_add_fetch(&slip, LOOK_NS, __ATOMIC_RELAXED);
    struct member *self = &story->member[me];
    uint64_t at = self->at_ns + LOOK_NS;
    __atomic_store_n(&self->at_ns, at, __ATOMIC_RELEASE);
    if (at > horizon && at - horizon > AHEAD_NS && !held && mine == 1)
        take_turn();
    return at;
}

static void join(void)
{
    enter();
    for (int i = 0; i < MEMBERS && me < 0; i++)
        if (!story->member[i].tid) {
            story->member[i].tid = (uint32_t)syscall(SYS_gettid);
            story->member[i].pid = (uint32_t)getpid();
            story->member[i].at_ns = story->now_ns;
            me = i;
        }
    if (me < 0)
        give_up("too many members");
    mine++;
    if (++story->come >= story->expected && !story->ready) {
        story->ready = 1;
        for (int i = 0; i < MEMBERS; i++)
            if (story->member[i].tid)
                ring(i);
    }
    leave();
    take_turn();
}

/* From now on this thread has a time of its own; returns when all have come. Without a story it does nothing. */
API void virtual_clock_join(void)
{
    if (story && me < 0)
        join();
}

/* This thread takes part no more: others need not wait for it. */
API void virtual_clock_leave(void)
{
    if (!story || me < 0)
        return;
    enter();
    story->member[me].tid = 0;
    me = -1;
    mine--;
    int other = last(-1, 0);
    if (other >= 0)
        ring(other);
    leave();
}

static struct timespec spec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)};
}

static uint64_t ns_of(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * SECOND + (uint64_t)t->tv_nsec;
}

static int is_real(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

static int is_cpu(clockid_t clock)
{
    return clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID || clock < 0;
}

API int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!story || is_cpu(clock))
        return (int)syscall(SYS_clock_gettime, clock, t);
    *t = spec_of(look() + (is_real(clock) ? story->real_ns : 0));
    return 0;
}

static void pass(uint64_t ns)
{
    if (me >= 0) {
        sleep_until(story->member[me].at_ns + ns);
        return;
    }
    __atomic_add_fetch(&slip, ns, __ATOMIC_RELAXED);
    real_nap(ns < 1000000 ? ns : 1000000);
}

API int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left)
{
    (void)left;
    if (!story) {
        long rc = syscall(SYS_clock_nanosleep, clock, flags, t, left);
        return rc ? errno : 0;
    }
    uint64_t ns = ns_of(t);
    if (flags & TIMER_ABSTIME) {
        uint64_t now = look() + (is_real(clock) ? story->real_ns : 0);
        ns = ns > now ? ns - now : 0;
    }
    pass(ns);
    return 0;
}

API int nanosleep(const struct timespec *t, struct timespec *left)
{
    int rc = clock_nanosleep(CLOCK_MONOTONIC, 0, t, left);
    errno = rc;
    return rc ? -1 : 0;
}

API int usleep(useconds_t us)
{
    struct timespec t = spec_of(us * 1000ull);
    return nanosleep(&t, NULL);
}

API int sched_yield(void)
{
    if (!story || me < 0)
        real_nap(0);
    else
        story->member[me].at_ns += YIELD_NS;
    return 0;
}

/* A keeper waits for a signal until its next round. */
API int sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *t)
{
    if (!real_lock)
        find_real();
    if (!story || !t)
        return real_sigtimedwait(set, info, t);
    virtual_clock_join();
    const struct timespec none = {0, 0};
    int rc = real_sigtimedwait(set, info, &none);
    if (rc >= 0 || errno != EAGAIN)
        return rc;
    pass(ns_of(t));
    return real_sigtimedwait(set, info, &none);
}

/* Python's threads wait for each other with a deadline so. They become members by it, once one of theirs is. */
API int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *t)
{
    static int (*wait)(sem_t *, clockid_t, const struct timespec *);
    if (!wait)
        *(void **)&wait = dlsym(RTLD_NEXT, "sem_clockwait");
    if (!story || !__atomic_load_n(&mine, __ATOMIC_ACQUIRE))
        return wait(sem, clock, t);
    virtual_clock_join();
    uint64_t end = ns_of(t) - (is_real(clock) ? story->real_ns : 0);
    for (;;) {
        if (!sem_trywait(sem))
            return 0;
        uint64_t now = look();
        if (now >= end) {
            errno = ETIMEDOUT;
            return -1;
        }
        pass(end - now < 5000000 ? end - now : 5000000);
    }
}

API int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!real_lock)
        find_real();
    int rc = real_lock(mutex);
    held += !rc || rc == EOWNERDEAD;
    return rc;
}

API int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    if (!real_lock)
        find_real();
    int rc = real_try(mutex);
    held += !rc || rc == EOWNERDEAD;
    return rc;
}

API int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (!real_lock)
        find_real();
    int rc = real_unlock(mutex);
    held -= !rc;
    return rc;
}

/* A sleep by a system call that no library function stands before. */
static void trapped(int number, siginfo_t *info, void *context)
{
    (void)number;
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
#if defined __x86_64__
    const struct timespec *t = (const struct timespec *)machine->gregs[REG_RDI];
    machine->gregs[REG_RAX] = 0;
#elif defined __aarch64__
    const struct timespec *t = (const struct timespec *)machine->regs[0];
    machine->regs[0] = 0;
#else
#error "which registers have the arguments of a system call?"
#endif
    if (info->si_syscall == SYS_nanosleep)
        pass(ns_of(t));
}

static void filter(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_nanosleep, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        give_up("system calls cannot be filtered here");
}

/* A forked child is nobody's member. */
static void forget(void)
{
    me = -1;
    mine = 0;
}

API int virtual_clock_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (!real_lock)
        find_real();
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *story, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED)
        return -1;
    story = map;
    return 0;
}

/* Write a new story of so many members: it begins now. */
API int virtual_clock_create(const char *path, uint64_t expected)
{
    struct timespec mono, real;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *story))
        return -1;
    struct story *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (made == MAP_FAILED)
        return -1;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &mono);
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    made->now_ns = ns_of(&mono);
    made->real_ns = ns_of(&real) - made->now_ns;
    made->expected = expected;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&made->lock, &attributes);
    munmap(made, sizeof *made);
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("VIRTUAL_CLOCK");
    find_real();
    if (!path || !*path)
        return;
    if (virtual_clock_open(path))
        give_up("no such story");
    pthread_atfork(NULL, NULL, forget);
    filter();
}

/* The ways out that run no destructors. */
API void _exit(int status)
{
    virtual_clock_leave();
    for (;;)
        syscall(SYS_exit_group, status);
}

API void _Exit(int status)
{
    _exit(status);
}

__attribute__((destructor)) static void end(void)
{
    virtual_clock_leave();
}
