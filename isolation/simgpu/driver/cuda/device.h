/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of this process: what their cards are charged, and what is queued on them. */
#ifndef SIMGPU_DEVICE_H
#define SIMGPU_DEVICE_H

#include "pool.h"
#include "sim.h"
#include "stream.h"

#define SIM_MAX_DEVICES 64

struct sim_device {
    int index; /* of the card in the hardware file */
    struct hw_card *card;
    struct hw_client *client; /* NULL until the first context */
    struct sim_context *primary;
    int primary_users;
    unsigned primary_flags;
    struct sim_context *contexts;
    struct sim_stream *streams;
    struct sim_pool pool, graph_pool, *current_pool;
    uint64_t last_default;               /* seq of the newest work in the default stream */
    struct sim_event *mark[HW_QUEUE];    /* events in the queue, by seq */
    struct sim_host_call call[HW_QUEUE]; /* host functions in the queue */
    int helper;                          /* the thread that runs them was started */
};

extern struct sim_device *sim_device[SIM_MAX_DEVICES];
extern int sim_devices;

CUresult sim_check_device(CUdevice device, struct sim_device **found);
CUresult sim_device_error(const struct sim_device *device);
struct sim_device *sim_device_of(const struct sim_context *context);
CUresult sim_charge(struct sim_device *device, enum hw_kind kind, uint64_t bytes);
void sim_refund(struct sim_device *device, enum hw_kind kind, uint64_t bytes);
CUresult sim_client(struct sim_device *device);

CUresult sim_wait(struct sim_device *device, uint64_t seq);
CUresult sim_wait_context(struct sim_device *device);
int sim_done(struct sim_device *device, uint64_t seq, CUresult *fault);

uint32_t sim_arch(const struct sim_device *device);

/* Hold a card's lock until the end of the enclosing block, with the card at the present. */
static inline void sim_card_left(struct hw_card **card)
{
    hw_unlock(*card);
}

static inline struct hw_card *sim_card_locked(struct sim_device *device)
{
    hw_lock(device->card);
    hw_advance(&sim_hw, device->card, hw_now(&sim_hw));
    return device->card;
}

#define CARD_LOCKED(device) \
    struct hw_card *card_ __attribute__((cleanup(sim_card_left), unused)) = sim_card_locked(device)

#endif
