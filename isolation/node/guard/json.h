// SPDX-License-Identifier: Apache-2.0
/*
 * Reads single values out of a JSON text (RFC 8259) without building a tree.
 *
 * Strict where it matters for trust: a key that stands twice in an object is an error, as is nesting beyond 64 levels
 * and anything after which the text cannot be followed any more. Strings are compared and returned unescaped; one that
 * holds a zero or a character beyond ASCII by \u escape is an error, for no value that is asked for here has one.
 */
#ifndef GS_GUARD_JSON_H
#define GS_GUARD_JSON_H

#include <stddef.h>

/* A value: it begins somewhere at or after `at`. */
struct json {
    const char *at;
    const char *end;
};

/* The value of a key of an object; 0: no object, no such key, or damaged. */
int json_get(const struct json *object, const char *key, struct json *value);

/* A string with its closing zero; 0: no string, or longer than `room`. */
int json_text(const struct json *value, char *text, size_t room);

/* A whole number of at most nine digits; 0: none. */
int json_number(const struct json *value, long *number);

#endif
