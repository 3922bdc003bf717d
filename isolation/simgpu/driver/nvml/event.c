/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: sets of events. XIDs and uncorrectable ECC errors are told to every set that registered.
 * Return convention: nvmlReturn_t. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

struct set {
    unsigned long long types[HW_MAX_CARDS];
    uint64_t xids[HW_MAX_CARDS], corrected[HW_MAX_CARDS], uncorrected[HW_MAX_CARDS]; /* told so far */
};

API int nvmlEventSetCreate(struct set **set)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(set);
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_INSUFFICIENT_RESOURCES;
}

API int nvmlEventSetFree(struct set *set)
{
    NEED(set);
    free(set);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetSupportedEventTypes(struct nvml_device *device, unsigned long long *types)
{
    LOOK(device);
    NEED(types);
    *types = NVML_EVENT_XID | NVML_EVENT_SINGLE_BIT_ECC | NVML_EVENT_DOUBLE_BIT_ECC;
    return NVML_SUCCESS;
}

/* Only what happens after this is told. */
API int nvmlDeviceRegisterEvents(struct nvml_device *device, unsigned long long types, struct set *set)
{
    LOOK(device);
    NEED(set);
    if (card->model.parent)
        return NVML_NOT_SUPPORTED;
    set->types[device->card] |= types;
    set->xids[device->card] = card->xids;
    set->corrected[device->card] = card->ecc_corrected;
    set->uncorrected[device->card] = card->ecc_uncorrected;
    return NVML_SUCCESS;
}

/* The next untold event of a card, if there is one. */
static int take(struct set *set, uint64_t index, struct nvml_event *event)
{
    struct hw_card *card = &nvml_hw.file->card[index];
    int found = 1;
    *event = (struct nvml_event){nvml_handle(index), 0, 0, UINT32_MAX, UINT32_MAX};
    hw_lock(card);
    if (set->types[index] & NVML_EVENT_XID && set->xids[index] < card->xids) {
        if (set->xids[index] + HW_XIDS < card->xids)
            set->xids[index] = card->xids - HW_XIDS;
        event->type = NVML_EVENT_XID;
        event->data = card->xid[set->xids[index]++ % HW_XIDS].xid;
    } else if (set->types[index] & NVML_EVENT_DOUBLE_BIT_ECC && set->uncorrected[index] < card->ecc_uncorrected) {
        event->type = NVML_EVENT_DOUBLE_BIT_ECC;
        set->uncorrected[index] = card->ecc_uncorrected;
    } else if (set->types[index] & NVML_EVENT_SINGLE_BIT_ECC && set->corrected[index] < card->ecc_corrected) {
        event->type = NVML_EVENT_SINGLE_BIT_ECC;
        set->corrected[index] = card->ecc_corrected;
    } else {
        found = 0;
    }
    hw_unlock(card);
    return found;
}

API int nvmlEventSetWait_v2(struct set *set, struct nvml_event *event, unsigned timeout_ms)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(set && event);
    uint64_t end = hw_now(&nvml_hw) + timeout_ms * 1000000ull;
    for (;;) {
        for (uint64_t i = 0; i < nvml_hw.file->cards; i++)
            if (set->types[i] && take(set, i, event))
                return NVML_SUCCESS;
        uint64_t now = hw_now(&nvml_hw);
        if (now >= end)
            return NVML_TIMEOUT;
        uint64_t nap = end - now < 5000000 ? end - now : 5000000;
        nanosleep(&(struct timespec){0, (long)nap}, NULL);
    }
}

API int nvmlEventSetWait(struct set *set, struct nvml_event *event, unsigned timeout_ms)
{
    return nvmlEventSetWait_v2(set, event, timeout_ms);
}
