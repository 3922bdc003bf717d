/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the program that live as long as graphs refer to them: counted, then given to their destructor.
 * Return convention: CUresult. */
#include "graph.h"
#include "sim.h"

#include <stdlib.h>

enum { NO_DESTRUCTOR_SYNC = 1, GRAPH_MOVE = 1 };

struct sim_user_object {
    uint32_t tag;
    uint64_t count;
    void *pointer;
    cu_host_fn destroy;
};

static struct sim_user_object *check(struct sim_user_object *object, unsigned count)
{
    return object && object->tag == SIM_USER_OBJECT && count && count <= INT32_MAX ? object : NULL;
}

/* `count` references less; the last one calls the destructor.  pre: the process's lock is held. */
static CUresult let_go(struct sim_user_object *object, uint64_t count)
{
    if (count > object->count)
        return CUDA_ERROR_INVALID_VALUE;
    object->count -= count;
    if (object->count)
        return CUDA_SUCCESS;
    object->tag = SIM_DEAD;
    object->destroy(object->pointer);
    return CUDA_SUCCESS;
}

API CUresult cuUserObjectCreate(struct sim_user_object **made, void *pointer, cu_host_fn destroy, unsigned count,
                                unsigned flags)
{
    ENTER();
    if (!made || !destroy || !count || count > INT32_MAX || flags != NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    *made = sim_new(sizeof **made);
    **made = (struct sim_user_object){SIM_USER_OBJECT, count, pointer, destroy};
    return CUDA_SUCCESS;
}

API CUresult cuUserObjectRetain(struct sim_user_object *object, unsigned count)
{
    ENTER();
    LOCKED();
    if (!check(object, count))
        return CUDA_ERROR_INVALID_VALUE;
    object->count += count;
    return CUDA_SUCCESS;
}

API CUresult cuUserObjectRelease(struct sim_user_object *object, unsigned count)
{
    ENTER();
    LOCKED();
    return check(object, count) ? let_go(object, count) : CUDA_ERROR_INVALID_VALUE;
}

static void add(struct sim_user **users, struct sim_user_object *object, uint64_t count)
{
    struct sim_user *user = sim_new(sizeof *user);
    *user = (struct sim_user){object, count, *users};
    *users = user;
}

/* The graph refers to the object: by references of the caller's (moved) or by new ones. */
API CUresult cuGraphRetainUserObject(void *handle, struct sim_user_object *object, unsigned count, unsigned flags)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(handle);
    if (!graph || !check(object, count) || flags & ~(unsigned)GRAPH_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    object->count += flags & GRAPH_MOVE ? 0 : count;
    add(&graph->users, object, count);
    return CUDA_SUCCESS;
}

API CUresult cuGraphReleaseUserObject(void *handle, struct sim_user_object *object, unsigned count)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(handle);
    uint64_t held = 0;
    for (struct sim_user *user = graph && check(object, count) ? graph->users : NULL; user; user = user->next)
        held += user->object == object ? user->count : 0;
    if (held < count || !count)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t left = count;
    for (struct sim_user *user = graph->users; left; user = user->next) {
        uint64_t part = user->object == object ? (user->count < left ? user->count : left) : 0;
        user->count -= part;
        left -= part;
    }
    return let_go(object, count);
}

/* An executable graph keeps alive what its graph does. */
void sim_users_copy(struct sim_user **to, const struct sim_user *from)
{
    for (; from; from = from->next)
        if (from->count) {
            from->object->count += from->count;
            add(to, from->object, from->count);
        }
}

void sim_users_end(struct sim_user **users)
{
    for (struct sim_user *user = *users, *next; user; user = next) {
        next = user->next;
        if (user->count)
            (void)let_go(user->object, user->count);
        free(user);
    }
    *users = NULL;
}
