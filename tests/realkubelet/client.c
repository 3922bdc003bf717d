/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant's program: takes memory of the first card that lets it, says what it sees, and waits.
 *
 * One line a fact on standard output, `<word> <value>`; nothing is decided here. Loaded like any
 * program that uses the driver: `libcuda.so.1` by name. Without a driver it says so and waits.
 *
 * client [MiB to take, one piece after the other; +MiB: asked for every millisecond until it is given ...]
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void *driver;

typedef int (*of_flags)(unsigned);
typedef int (*of_count)(int *);
typedef int (*of_uuid)(unsigned char *, int);
typedef int (*of_retain)(void **, int);
typedef int (*of_context)(void *);
typedef int (*of_alloc)(unsigned long long *, size_t);
typedef int (*of_info)(size_t *, size_t *);

static void *entry(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        printf("missing %s\n", name);
        exit(3);
    }
    return found;
}

/* The first card on which a context can be made; -1 where there is none. */
static int card_with_context(int cards)
{
    for (int i = 0; i < cards; i++) {
        void *context = NULL;
        int status = ((of_retain)entry("cuDevicePrimaryCtxRetain"))(&context, i);

        printf("retain %d %d\n", i, status);
        if (status == 0 && ((of_context)entry("cuCtxSetCurrent"))(context) == 0)
            return i;
    }
    return -1;
}

static void say_uuid(int card)
{
    unsigned char id[16] = {0};

    ((of_uuid)entry("cuDeviceGetUuid_v2"))(id, card);
    printf("card ");
    for (int i = 0; i < 16; i++)
        printf("%02x", id[i]);
    puts("");
}

/* Ask until it is given, and say when that was, in nanoseconds since the epoch. */
static void wait_for(size_t bytes)
{
    struct timespec now;
    unsigned long long at = 0;

    while (((of_alloc)entry("cuMemAlloc_v2"))(&at, bytes) != 0)
        usleep(1000);
    clock_gettime(CLOCK_REALTIME, &now);
    printf("given %lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
}

int main(int count, char **words)
{
    int cards = 0, card;
    size_t free_bytes = 0, total = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("driver %s\n", dlerror());
    } else {
        printf("init %d\n", ((of_flags)entry("cuInit"))(0));
        ((of_count)entry("cuDeviceGetCount"))(&cards);
        printf("cards %d\n", cards);
        card = card_with_context(cards);
        if (card >= 0) {
            say_uuid(card);
            printf("info %d\n", ((of_info)entry("cuMemGetInfo_v2"))(&free_bytes, &total));
            printf("total %zu\n", total);
            for (int i = 1; i < count; i++) {
                unsigned long long at = 0;
                if (words[i][0] == '+')
                    wait_for((size_t)atol(words[i]) << 20);
                else
                    printf("take %d\n", ((of_alloc)entry("cuMemAlloc_v2"))(&at, (size_t)atol(words[i]) << 20));
            }
        }
    }
    puts("ready 1");
    for (;;)
        pause();
}
