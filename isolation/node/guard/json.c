// SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <string.h>

#define DEEPEST 64

static void skip_space(struct json *c)
{
    while (c->at < c->end && strchr(" \t\r\n", *c->at) && *c->at)
        c->at++;
}

static int take(struct json *c, char what)
{
    skip_space(c);
    if (c->at >= c->end || *c->at != what)
        return 0;
    c->at++;
    return 1;
}

static int hex4(const char *at)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *found;
        char low = at[i] >= 'A' && at[i] <= 'F' ? (char)(at[i] + 32) : at[i];
        if (!low || !(found = strchr(digits, low)))
            return -1;
        value = value * 16 + (int)(found - digits);
    }
    return value;
}

/*
 * A string; `text` may be NULL, then it is only passed over. -1: damaged; else its length, which is `room` or more
 * where it did not fit or holds what cannot be returned.
 */
static long take_text(struct json *c, char *text, size_t room)
{
    size_t n = 0;
    int fits = 1;
    if (!take(c, '"'))
        return -1;
    while (c->at < c->end && *c->at != '"') {
        int one = (unsigned char)*c->at++;
        if (one < 0x20)
            return -1;
        if (one == '\\') {
            if (c->at >= c->end)
                return -1;
            char kind = *c->at++;
            const char *plain = "\"\\/", *from = "bfnrt", *to = "\b\f\n\r\t", *found;
            if (kind && strchr(plain, kind)) {
                one = kind;
            } else if (kind && (found = strchr(from, kind))) {
                one = to[found - from];
            } else if (kind == 'u' && c->end - c->at >= 4) {
                one = hex4(c->at);
                if (one < 0)
                    return -1;
                c->at += 4;
                if (one == 0 || one > 0x7f)
                    fits = 0;
            } else {
                return -1;
            }
        }
        if (text && n + 1 < room)
            text[n] = (char)one;
        n++;
    }
    if (!take(c, '"'))
        return -1;
    if (text && room)
        text[n < room ? n : room - 1] = 0;
    return fits ? (long)n : (long)(n < room ? room : n);
}

static int skip_value(struct json *c, int depth)
{
    skip_space(c);
    if (c->at >= c->end || depth > DEEPEST)
        return 0;
    char first = *c->at;
    if (first == '"')
        return take_text(c, NULL, 0) >= 0;
    if (first == '{' || first == '[') {
        char last = first == '{' ? '}' : ']';
        c->at++;
        if (take(c, last))
            return 1;
        do {
            if (first == '{' && (take_text(c, NULL, 0) < 0 || !take(c, ':')))
                return 0;
            if (!skip_value(c, depth + 1))
                return 0;
        } while (take(c, ','));
        return take(c, last);
    }
    const char *begin = c->at;
    while (c->at < c->end && *c->at && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *c->at))
        c->at++;
    return c->at > begin;
}

int json_get(const struct json *object, const char *key, struct json *value)
{
    struct json c = *object;
    int found = 0;
    char name[128];
    if (!take(&c, '{') || take(&c, '}'))
        return 0;
    do {
        long length = take_text(&c, name, sizeof name);
        if (length < 0 || !take(&c, ':'))
            return 0;
        int match = length < (long)sizeof name && (size_t)length == strlen(key) && !memcmp(name, key, (size_t)length);
        if (match && found)
            return 0;
        skip_space(&c);
        const char *begin = c.at;
        if (!skip_value(&c, 0))
            return 0;
        if (match) {
            *value = (struct json){begin, c.at};
            found = 1;
        }
    } while (take(&c, ','));
    return take(&c, '}') && found;
}

int json_text(const struct json *value, char *text, size_t room)
{
    struct json c = *value;
    long length = take_text(&c, text, room);
    return length >= 0 && (size_t)length < room;
}

int json_number(const struct json *value, long *number)
{
    struct json c = *value;
    int digits = 0;
    *number = 0;
    skip_space(&c);
    for (; c.at < c.end && *c.at >= '0' && *c.at <= '9' && digits < 10; c.at++, digits++)
        *number = *number * 10 + (*c.at - '0');
    return digits > 0 && digits < 10 && c.at == c.end;
}
