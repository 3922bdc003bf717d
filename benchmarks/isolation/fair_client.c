/* SPDX-License-Identifier: Apache-2.0 */
/* A job that always has work for the card: one pattern of kernels, launched as fast as the driver
 * (and whoever stands before it) takes them.
 *
 *   fair_client PATTERN SEED BEGIN END [ON OFF]
 *
 * BEGIN and END are CLOCK_MONOTONIC seconds; with ON and OFF it works and rests in turns of so many
 * seconds. Prints one line of JSON at the end: launches, requests, when it turned to work, and how long it
 * waited for a CPU (of this machine, not of the card).
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef struct opaque *handle;
#define CU(name, ...) extern CUresult name(__VA_ARGS__)
CU(cuInit, unsigned);
CU(cuDevicePrimaryCtxRetain, handle *, int);
CU(cuCtxSetCurrent, handle);
CU(cuModuleLoadData, handle *, const void *);
CU(cuModuleGetFunction, handle *, handle, const char *);
CU(cuStreamCreate, handle *, unsigned);
CU(cuStreamSynchronize, handle);
CU(cuCtxSynchronize, void);
CU(cuStreamBeginCapture_v2, handle, int);
CU(cuStreamEndCapture, handle, handle *);
CU(cuGraphInstantiateWithFlags, handle *, handle, uint64_t);
CU(cuGraphLaunch, handle, handle);
CU(cuLaunchKernel, handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
   void **);

/* In a story of tests/abi/virtual_clock.c we are a member; elsewhere nobody preloads this. */
extern void virtual_clock_join(void) __attribute__((weak));

enum { FUNCTIONS = 128, STREAMS = 4, NODES = 40, TURNS = 64 };
static handle function[FUNCTIONS], stream[STREAMS], graph[2];
static uint64_t state, launches, requests, turn[TURNS], turns;
static double begin_s, end_s, on_s, off_s;

static void need(CUresult rc, const char *what)
{
    if (!rc)
        return;
    fprintf(stderr, "%s: error %d\n", what, rc);
    exit(1);
}
#define NEED(call) need(call, #call)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sleep_until(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
        ;
}

/* Uniform in [0, 1): xorshift64*. */
static double chance(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (double)(state * 0x2545F4914F6CDD1DULL >> 11) / 9007199254740992.0;
}

static double between(double low, double high) { return low + (high - low) * chance(); }

/* One kernel of `us` microseconds that fills `width` thousandths of the card. */
static void launch(int which, double us, unsigned width, int on)
{
    uint64_t ns = (uint64_t)(us * 1000), wide = width;
    void *parameters[] = {&ns, &wide};
    NEED(cuLaunchKernel(function[which], 80, 1, 1, 128, 1, 1, 0, stream[on], parameters, NULL));
    launches++;
}

static void rest(double us)
{
    double until = now() + us / 1e6;
    while (now() < until)
        ;
}

/* A token: many small kernels with a gap now and then, then the host looks at the result. */
static void decode(void)
{
    for (int i = 0; i < 150; i++) {
        launch(i % 6, between(20, 50), 1000, 0);
        if (i % 30 == 29)
            rest(5);
    }
    NEED(cuStreamSynchronize(stream[0]));
    rest(50);
}

static void request(void)
{
    for (int i = 0; i < 10; i++)
        launch(i % 3, between(250, 350), 1000, 0);
    NEED(cuStreamSynchronize(stream[0]));
    requests++;
}

static void mixed(void)
{
    static const double us[8] = {60, 150, 400, 900, 2000, 5000, 11000, 15000};
    int which = (int)(chance() * 8);
    launch(which, us[which] * between(.7, 1.3), 1000, 0);
}

static void long_ones(void) { launch(0, between(20e3, 200e3), 1000, 0); }
static void short_ones(void) { launch(0, between(180, 220), 1000, 0); }
static void two_ms(void) { launch(0, between(1800, 2200), 1000, 0); }
static void twenty_ms(void) { launch(0, between(16e3, 20e3), 1000, 0); }
static void hundred_ms(void) { launch(0, between(90e3, 110e3), 1000, 0); }
static void strange(void) { launch((int)(launches % FUNCTIONS), 200e3, 1000, 0); }
static void slow(void) { launch(0, 200e3, 1000, 0); }
static void periodic(void) { launch(0, launches % 8 ? 30 : 2000, 1000, 0); }
static void bimodal(void) { launch(0, chance() < .02 ? 10e3 : 30, 1000, 0); }
static void streams(void)
{
    launch((int)(launches % 3), between(200, 5000), (unsigned)between(250, 1000), (int)(launches % STREAMS));
}
static void graphs(void)
{
    NEED(cuGraphLaunch(graph[launches++ % 2], stream[0]));
}

static const struct {
    const char *name;
    void (*step)(void);
} pattern[] = {{"short", short_ones}, {"2ms", two_ms},         {"20ms", twenty_ms}, {"100ms", hundred_ms},
               {"mixed", mixed},      {"decode", decode},      {"graph", graphs},   {"streams", streams},
               {"long", long_ones},   {"strange", strange},    {"slow", slow},      {"periodic", periodic},
               {"bimodal", bimodal},  {"online", request}};

static void load(void)
{
    static char image[FUNCTIONS * 64];
    char name[16];
    handle module, context;
    NEED(cuInit(0));
    NEED(cuDevicePrimaryCtxRetain(&context, 0));
    NEED(cuCtxSetCurrent(context));
    strcpy(image, "simgpu 1\n");
    for (int i = 0; i < FUNCTIONS; i++)
        sprintf(image + strlen(image), "kernel k%d params=8,8 ns=$0 width=$1\n", i);
    NEED(cuModuleLoadData(&module, image));
    for (int i = 0; i < FUNCTIONS; i++) {
        sprintf(name, "k%d", i);
        NEED(cuModuleGetFunction(&function[i], module, name));
    }
    for (int i = 0; i < STREAMS; i++)
        NEED(cuStreamCreate(&stream[i], 1));
}

/* Two graphs of a chain of kernels each, one about three times as dear as the other. */
static void capture(void)
{
    handle made;
    for (int which = 0; which < 2; which++) {
        NEED(cuStreamBeginCapture_v2(stream[0], 1));
        for (int i = 0; i < NODES; i++)
            launch(i % 8, which ? between(20, 60) : between(60, 180), 1000, 0);
        NEED(cuStreamEndCapture(stream[0], &made));
        NEED(cuGraphInstantiateWithFlags(&graph[which], made, 0));
    }
    launches = 0;
}

/* Nanoseconds that this process stood ready and had no CPU: second field of /proc/self/schedstat. */
static uint64_t starved(void)
{
    unsigned long long ran, waited = 0;
    FILE *file = fopen("/proc/self/schedstat", "r");
    if (file && fscanf(file, "%llu %llu", &ran, &waited) != 2)
        waited = 0;
    if (file)
        fclose(file);
    return waited;
}

static void work(void (*step)(void), double until)
{
    if (turns < TURNS)
        turn[turns++] = (uint64_t)(now() * 1e9);
    while (now() < until)
        step();
}

int main(int argc, char **argv)
{
    void (*step)(void) = NULL;
    if (argc < 5)
        return 2;
    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
        if (!strcmp(argv[1], pattern[i].name))
            step = pattern[i].step;
    state = strtoull(argv[2], NULL, 10) * 0x9E3779B97F4A7C15ULL + 1;
    begin_s = atof(argv[3]);
    end_s = atof(argv[4]);
    on_s = argc > 6 ? atof(argv[5]) : 0;
    off_s = argc > 6 ? atof(argv[6]) : 0;
    if (!step)
        return 2;
    load();
    if (!strcmp(argv[1], "graph"))
        capture();
    if (virtual_clock_join)
        virtual_clock_join();
    sleep_until(begin_s);
    uint64_t before = starved();
    double next = begin_s;
    while (next < end_s) {
        double stop = on_s > 0 && next + on_s < end_s ? next + on_s : end_s;
        work(step, stop);
        if (stop >= end_s)
            break;
        NEED(cuCtxSynchronize());
        next = stop + off_s;
        sleep_until(next < end_s ? next : end_s);
    }
    printf("{\"launches\": %llu, \"requests\": %llu, \"starved_ns\": %llu, \"turns\": [", (unsigned long long)launches,
           (unsigned long long)requests, (unsigned long long)(starved() - before));
    for (uint64_t i = 0; i < turns; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)turn[i]);
    printf("]}\n");
    fflush(stdout);
    _Exit(0); /* what is queued still is nobody's */
}
