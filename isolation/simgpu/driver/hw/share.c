/* SPDX-License-Identifier: Apache-2.0 */
/* Exported allocations: memory that lives until its last holder and its last exported descriptor
 * are gone, and that stands in exactly one process's books.
 *
 * The caller holds the card's lock.
 * Return convention: 0 or an index on success, a negative errno otherwise. */
#include "hw.h"

#include <errno.h>
#include <unistd.h>

enum { FREE, TAKEN };

/* The holder's entry, or a spare one (`*count` 0), or NULL where there are too many. */
static uint64_t *entry_of(struct hw_object *object, uint64_t who, uint64_t *count)
{
    uint64_t *spare = NULL;
    for (int i = 0; i < HW_HOLDERS; i++) {
        if (object->holder[i] >> 32 == who) {
            *count = object->holder[i] & 0xFFFFFFFFu;
            return &object->holder[i];
        }
        if (!object->holder[i] && !spare)
            spare = &object->holder[i];
    }
    *count = 0;
    return spare;
}

static uint64_t index_of(const struct hw_card *card, const struct hw_client *client)
{
    return (uint64_t)(client - card->client) + 1;
}

/* Make bytes that already stand in the client's books an object that it holds once. */
int hw_share(struct hw_card *card, struct hw_client *client, enum hw_kind kind, uint64_t bytes)
{
    for (uint64_t i = 0; i < HW_OBJECTS; i++) {
        struct hw_object *object = &card->object[i];
        if (object->state == TAKEN)
            continue;
        hw_put(card, &object->generation, object->generation + 1);
        hw_put(card, &object->bytes, bytes);
        hw_put(card, &object->kind, kind);
        hw_put(card, &object->owner, index_of(card, client));
        for (int h = 1; h < HW_HOLDERS; h++)
            hw_put(card, &object->holder[h], 0);
        hw_put(card, &object->holder[0], index_of(card, client) << 32 | 1);
        hw_put(card, &object->state, TAKEN);
        if (card->objects < i + 1)
            hw_put(card, &card->objects, i + 1);
        hw_commit(card);
        return (int)i;
    }
    return -ENFILE;
}

/* One more reference for the client; -ENOENT where the object is gone. */
int hw_hold(struct hw *hw, struct hw_card *card, struct hw_client *client, uint64_t index, uint64_t generation)
{
    if (index >= HW_OBJECTS)
        return -ENOENT;
    struct hw_object *object = &card->object[index];
    if (object->state != TAKEN || object->generation != generation)
        return -ENOENT;
    uint64_t count;
    uint64_t *entry = entry_of(object, index_of(card, client), &count);
    if (!entry)
        return -ENFILE;
    if (hw_owned(hw) && object->owner != index_of(card, client))
        return -ENOENT; /* the owner of the hardware knows who asked for memory, not who was handed it */
    hw_put(card, entry, index_of(card, client) << 32 | (count + 1));
    if (!object->owner) { /* only a descriptor kept it: now somebody has it again */
        hw_put(card, &object->owner, index_of(card, client));
        hw_put(card, &object->kind, HW_ADOPTED);
        hw_put(card, &client->bytes[HW_ADOPTED], client->bytes[HW_ADOPTED] + object->bytes);
        hw_put(card, &client->total_bytes, client->total_bytes + object->bytes);
    }
    hw_commit(card);
    return 0;
}

/* The owner let go: another holder's books take the bytes, else they wait for the descriptor. */
static void pass_on(struct hw_card *card, struct hw_object *object)
{
    struct hw_client *owner = &card->client[object->owner - 1];
    for (int i = 0; i < HW_HOLDERS; i++) {
        if (!object->holder[i])
            continue;
        struct hw_client *heir = &card->client[(object->holder[i] >> 32) - 1];
        hw_put(card, &owner->bytes[object->kind], owner->bytes[object->kind] - object->bytes);
        hw_put(card, &owner->total_bytes, owner->total_bytes - object->bytes);
        hw_put(card, &heir->bytes[HW_ADOPTED], heir->bytes[HW_ADOPTED] + object->bytes);
        hw_put(card, &heir->total_bytes, heir->total_bytes + object->bytes);
        hw_put(card, &object->kind, HW_ADOPTED);
        hw_put(card, &object->owner, object->holder[i] >> 32);
        return;
    }
}

/* Nobody holds it: free the bytes, unless an exported descriptor is still open somewhere.
 * While the owner's process lives the bytes stay in its books; a dead owner's become nobody's. */
static void end_if_unheld(struct hw *hw, struct hw_card *card, struct hw_object *object, int probe)
{
    for (int i = 0; i < HW_HOLDERS; i++)
        if (object->holder[i])
            return;
    uint64_t which = (uint64_t)(object - card->object);
    int held = hw_export_held(probe, (uint64_t)(card - hw->file->card), which);
    struct hw_client *owner = object->owner ? &card->client[object->owner - 1] : NULL;
    if (held && !(owner && owner->state != HW_LIVE))
        return;
    if (owner) {
        if (!held)
            hw_give_back(hw, card, owner, object->bytes);
        hw_put(card, &owner->bytes[object->kind], owner->bytes[object->kind] - object->bytes);
        hw_put(card, &owner->total_bytes, owner->total_bytes - object->bytes);
    }
    if (held) {
        hw_put(card, &object->owner, 0); /* still used, in nobody's books: unattributed */
    } else {
        hw_put(card, &card->used_bytes, card->used_bytes - object->bytes);
        hw_put(card, &object->state, FREE);
    }
    hw_commit(card);
}

/* `count` references of the client go (0: all of them). */
static void let_go(struct hw *hw, struct hw_card *card, struct hw_client *client, struct hw_object *object,
                   uint64_t count, int probe)
{
    uint64_t have, who = index_of(card, client);
    uint64_t *entry = entry_of(object, who, &have);
    if (!entry || !have)
        return;
    uint64_t left = count && count < have ? have - count : 0;
    hw_put(card, entry, left ? who << 32 | left : 0);
    if (!left && object->owner == who)
        pass_on(card, object);
    hw_commit(card);
    end_if_unheld(hw, card, object, probe);
}

/* One reference of the client goes; the last one of all frees the bytes. */
void hw_drop(struct hw *hw, struct hw_card *card, struct hw_client *client, uint64_t index)
{
    int probe = hw_probe_open(hw);
    let_go(hw, card, client, &card->object[index], 1, probe);
    if (probe >= 0)
        close(probe);
}

/* Every reference of a dead client goes, and what stands in its books though it holds no more. */
void hw_drop_all(struct hw *hw, struct hw_card *card, struct hw_client *client)
{
    int probe = hw_probe_open(hw);
    for (uint64_t i = 0; i < card->objects; i++) {
        struct hw_object *object = &card->object[i];
        if (object->state == TAKEN)
            let_go(hw, card, client, object, 0, probe);
        if (object->state == TAKEN && object->owner == index_of(card, client)) {
            pass_on(card, object);
            hw_commit(card);
            end_if_unheld(hw, card, object, probe);
        }
    }
    if (probe >= 0)
        close(probe);
}

/* Free objects that only a descriptor kept alive and whose descriptor has been closed. */
void hw_sweep_exports(struct hw *hw, struct hw_card *card, int probe)
{
    for (uint64_t i = 0; i < card->objects; i++)
        if (card->object[i].state == TAKEN)
            end_if_unheld(hw, card, &card->object[i], probe);
}

/* Bytes that the client has and that stand in another one's books. */
uint64_t hw_imported(const struct hw_card *card, const struct hw_client *client)
{
    uint64_t bytes = 0, who = index_of(card, client);
    for (uint64_t i = 0; i < card->objects; i++) {
        const struct hw_object *object = &card->object[i];
        for (int h = 0; object->state == TAKEN && object->owner != who && h < HW_HOLDERS; h++)
            bytes += object->holder[h] >> 32 == who ? object->bytes : 0;
    }
    return bytes;
}
