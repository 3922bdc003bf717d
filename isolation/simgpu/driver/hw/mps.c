/* SPDX-License-Identifier: Apache-2.0 */
/* MPS: clients that compute under one server, and the compute mode that keeps everybody else away.
 *
 * NVIDIA, "Multi-Process Service": clients of one server run at the same time, a client's part of the multiprocessors and
 * its memory are limited by process, a fault of one reaches all on the card, and the server then takes no new client
 * until all have ended.
 * Return convention: 0 on success, a negative errno otherwise. */
#include "hw.h"

#include <errno.h>

enum { RPC_FAILURE = 806, PAIR = 2 }; /* CUDA_ERROR_MPS_RPC_FAILURE; multiprocessors are given in pairs */

/* Index + 1 of the entry of the server that this process joined; 0: it does not serve this card, or is gone. */
uint64_t hw_server(const struct hw *hw, const struct hw_card *card)
{
    for (uint64_t i = 0; hw->mps.pid && i < card->clients; i++) {
        const struct hw_client *one = &card->client[i];
        if (one->state == HW_LIVE && one->pid == hw->mps.pid && one->start_time == hw->mps.start_time)
            return i + 1;
    }
    return 0;
}

/* Millionths of the card that an active thread percentage is: whole pairs of multiprocessors, one at least. */
uint64_t hw_cap(const struct hw_card *card, uint64_t percent)
{
    uint64_t pairs = card->model.sms * percent / 100 / PAIR;
    return percent >= 100 ? 0 : (pairs ? pairs : 1) * PAIR * 1000000 / card->model.sms;
}

static uint64_t clients_of(const struct hw_card *card, uint64_t server)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < card->clients; i++)
        count += card->client[i].state == HW_LIVE && card->client[i].server == server;
    return count;
}

/* Put a new client under the server that its process joined: -ENOTCONN where that takes none, -EMFILE where it is full. */
int hw_serve(struct hw *hw, struct hw_card *card, struct hw_client *client)
{
    uint64_t server = hw_server(hw, card);
    if (!server)
        return -ENOTCONN;
    uint64_t others = clients_of(card, server);
    if (card->client[server - 1].fault && others)
        return -ENOTCONN;
    if (others >= HW_MPS_CLIENTS || others >= hw->file->params.mps_clients)
        return -EMFILE;
    hw_put(card, &card->client[server - 1].fault, 0);
    client->server = server;
    client->cap = hw_cap(card, hw->mps.percent);
    client->limit_bytes = hw->mps.limit_bytes[card - hw->file->card];
    return 0;
}

/* The server's process ended: its clients fail from now on. */
void hw_server_gone(struct hw_card *card, const struct hw_client *server)
{
    uint64_t number = (uint64_t)(server - card->client) + 1;
    for (uint64_t i = 0; i < card->clients; i++) {
        struct hw_client *client = &card->client[i];
        if (client->server != number)
            continue;
        hw_drop_work(card, client);
        hw_put(card, &client->server, HW_LOST);
        hw_put(card, &client->fault, RPC_FAILURE);
        hw_commit(card);
    }
}

/* A fault of a client is one of all clients of its server, which takes no new ones until they have ended. */
void hw_spread(struct hw_card *card, struct hw_client *client, uint64_t fault)
{
    uint64_t server = client->server;
    for (uint64_t i = 0; server && server != HW_LOST && i < card->clients; i++) {
        struct hw_client *other = &card->client[i];
        int is_server = i + 1 == server;
        if (!is_server && (other->server != server || other->state != HW_LIVE))
            continue;
        if (other != client && !is_server)
            hw_drop_work(card, other);
        hw_put(card, &other->fault, fault);
        hw_commit(card);
    }
}

/* Whether the compute mode keeps this client from making a context: its card is another process's, or nobody's. */
int hw_taken(const struct hw_card *card, const struct hw_client *client)
{
    for (uint64_t i = 0; card->mode == HW_EXCLUSIVE && !client->server && i < card->clients; i++) {
        const struct hw_client *other = &card->client[i];
        if (other != client && other->state == HW_LIVE && other->contexts)
            return 1;
    }
    return card->mode == HW_PROHIBITED;
}
