/* SPDX-License-Identifier: Apache-2.0 */
/* The table of entry points behind cuGetProcAddress. It declares every function without its
 * parameters, so nothing else can stand in this file. Returns CUdriverProcAddressQueryResult. */
#include <stddef.h>
#include <string.h>

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

int sim_entry(const char *name, int version, int driver, int per_thread, void **function);

#define X(name, version, symbol) extern void symbol(void);
#define P(symbol, base) extern void symbol(void);
#include "names.def"

static const struct {
    const char *name;
    int version;
    void (*function)(void);
} ENTRIES[] = {
#define X(name, version, symbol) {#name, version, symbol},
#define A(name, version, symbol) {#name, version, symbol},
#include "names.def"
};

static const struct {
    void (*function)(void), (*per_thread)(void);
} PER_THREAD[] = {
#define P(symbol, base) {base, symbol},
#include "names.def"
};

/* The newest function of this name that both the caller's and the driver's version have. */
static int find(const char *name, int version, int driver, void (**function)(void))
{
    int best = -1, status = SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++) {
        if (strcmp(ENTRIES[i].name, name) || ENTRIES[i].version > driver)
            continue;
        if (ENTRIES[i].version > version) {
            status = status == FOUND ? FOUND : VERSION_NOT_SUFFICIENT;
        } else if (ENTRIES[i].version > best) {
            best = ENTRIES[i].version;
            *function = ENTRIES[i].function;
            status = FOUND;
        }
    }
    return status;
}

/* As `find`; `per_thread` asks for the variant whose default stream is the thread's own. */
int sim_entry(const char *name, int version, int driver, int per_thread, void **function)
{
    void (*found)(void) = NULL;
    int status = find(name, version, driver, &found);
    for (size_t i = 0; found && per_thread && i < sizeof PER_THREAD / sizeof *PER_THREAD; i++)
        if (PER_THREAD[i].function == found) {
            found = PER_THREAD[i].per_thread;
            break;
        }
    memcpy(function, &found, sizeof found);
    return status;
}
