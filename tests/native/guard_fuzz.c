// SPDX-License-Identifier: Apache-2.0
/* Hostile texts for the guard's JSON reader, each in memory of exactly its size: fuzz SEED ROUNDS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static unsigned long long word;

static unsigned next(unsigned below)
{
    word = word * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(word >> 33) % below;
}

static void ask(const struct json *value, int depth)
{
    static const char *const keys[] = {"id", "pid", "annotations", "", "root"};
    char text[40];
    long number;
    for (size_t room = 1; room <= sizeof text; room += 13)
        if (json_text(value, text, room) && strlen(text) >= room)
            abort();
    if (json_number(value, &number) && (number < 0 || number > 999999999))
        abort();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct json found;
        if (!json_get(value, keys[i], &found))
            continue;
        if (found.at < value->at || found.end > value->end || found.at > found.end)
            abort();
        if (depth < 4)
            ask(&found, depth + 1);
    }
}

int main(int argc, char **argv)
{
    static const char sample[] = "{\"id\":\"a\\u0062\\\\\",\"pid\": 42,\"annotations\":{\"id\":\"\\ud800\",\"\":[1,[{}]]},"
                                 "\"root\":{\"root\":{\"pid\":-1e9,\"id\":null}}}";
    static const char marks[] = "{}[]\",:\\u0019abtn \0";
    if (argc != 3)
        return 2;
    word = strtoull(argv[1], NULL, 10);
    for (long rounds = atol(argv[2]); rounds > 0; rounds--) {
        size_t size = next(sizeof sample);
        char *text = malloc(size ? size : 1);
        if (!text)
            return 3;
        for (size_t i = 0; i < size; i++)
            text[i] = next(2) ? sample[i] : sample[next(sizeof sample - 1)];
        if (next(2))
            memcpy(text, sample, size);
        for (unsigned changes = next(6); size && changes; changes--)
            text[next((unsigned)size)] = next(3) ? marks[next(sizeof marks)] : (char)next(256);
        struct json all = {text, text + size};
        ask(&all, 0);
        free(text);
    }
    puts("ok");
    return 0;
}
