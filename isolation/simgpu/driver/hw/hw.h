/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated hardware: one file that every process maps, standing for cards and kernel driver.
 *
 * Everything in it is 64-bit words, so that one write-ahead log (hw_put) makes each step of
 * the simulation and of the accounts whole or undone, whenever its process is killed.
 * Each card has a lock of its own that the kernel hands on when its holder dies.
 *
 * Return convention: 0 or a count on success, a negative errno otherwise.
 */
#ifndef SIMGPU_HW_H
#define SIMGPU_HW_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define HW_MAGIC 0x32474D4953555047ull
#define HW_VERSION 10u
#define HW_MAX_CARDS 64
#define HW_MAX_PROCESSES 1024
#define HW_CLIENTS 512  /* (process, card) pairs per card, the dead ones included */
#define HW_HISTORY 128  /* gone clients that are kept before entries are used again */
#define HW_QUEUE 1024   /* work items that one client may have in flight */
#define HW_LANES 64     /* independent queues per client; streams share them modulo */
#define HW_SAMPLES 64   /* utilisation samples kept per client */
#define HW_OBJECTS 4096 /* exported allocations per card */
#define HW_HOLDERS 32   /* processes that share one exported allocation */
#define HW_XIDS 64
#define HW_LIMITS 64    /* memory limits per card */
#define HW_LOG 16384 /* a step of all clients of an MPS server, in all their lanes */
#define HW_MPS_CLIENTS 64 /* most of one server; params.mps_clients may be less */
#define HW_NAME 64
#define HW_PATH 192
#define HW_DEPTH 8        /* groups from a process's own upwards that are known of it */
#define HW_NO_LIMIT UINT64_MAX /* NVML_DEVICE_MEMORY_LIMIT_MAX */
#define HW_LOST UINT64_MAX     /* in place of a server: it is gone, and its client is of no use any more */

/* Parameters of the simulation and their defaults; NVIDIA publishes few of these figures. */
#define HW_PARAMS(X)                                                                            \
    X(cuda_version, 13040)       /* answer of cuDriverGetVersion; newer names are not found */  \
    X(slice_ns, 2000000)         /* time slice of a context while others wait */                \
    X(switch_ns, 50000)          /* from one context to another; nothing runs */               \
    X(gap_ns, 1000)              /* added to every kernel on the card */                        \
    X(jitter_permille, 0)        /* kernel durations vary by up to this, both ways */           \
    X(launch_ns, 2000)           /* CPU time of one launch */                                   \
    X(event_ns, 1000)            /* CPU time of one event call */                               \
    X(alloc_ns, 1000)            /* CPU time of one allocation or free */                       \
    X(nvml_ns, 0)                /* CPU time of one NVML query of a card */                     \
    X(spin_ns, 30000)            /* waits shorter than this are spun */                         \
    X(kernel_ns, 10000)          /* duration of a wave of a kernel that names none */           \
    X(context_ns, 0)             /* time to create a context */                                 \
    X(context_bytes, 0)          /* 0: as the model says */                                     \
    X(granule_bytes, 2097152)    /* physical memory is handed out in these */                   \
    X(module_permille, 1000)     /* what modules take, of what their images say */              \
    X(pool_granule_bytes, 33554432) /* what a memory pool grows by */                           \
    X(graph_granule_bytes, 33554432) /* what the graph memory pool grows by */                  \
    X(teardown_ns, 20000000)     /* memory of a dead process comes back after this */           \
    X(reap_ns, 2000000)          /* dead processes are looked for this often */                 \
    X(sample_ns, 166666667)      /* NVML takes a utilisation sample this often */               \
    X(sample_late_ns, 100000000) /* and shows it this much later */                             \
    X(sample_quantum, 1)         /* percent; utilisation is rounded to multiples of it */       \
    X(sample_missing_permille, 20) /* samples that are lost */                                  \
    X(sample_shared, 0)          /* 1: one sample a period, of the whole card, under anybody's name */ \
    X(queue_depth, 1024)         /* launches in flight before a launch blocks */                \
    X(seed, 1)                                                                                  \
    X(nvml_status, 0)            /* NVML answers this error until it is started anew */         \
    X(nvml_hang, 0)              /* 1: NVML does not answer until this is 0 again */            \
    X(nvml_no_bytes, 0)          /* 1: processes are listed, their bytes are not available */   \
    X(nvml_imports, 0)           /* 1: shared memory counts at each process that has it, not once */ \
    X(accounting, 0)             /* 1: NVML keeps accounts of processes, the gone included */    \
    X(mps, 0)                    /* 1: NVML lists those who compute as clients of MPS, too */   \
    X(mps_clients, 60)           /* most clients of one MPS server on a card */                 \
    X(memacct, 2)                /* memory limits: 0 off, 1 the driver's own, 2 dmem (RmMemacctMode) */ \
    X(owned, 0)                  /* 1: memory is had only from the process that owns the hardware */

/* What NVML tells of a card's hardware once `inject` has set it; until then a default, or nothing. */
#define HW_SETTINGS(X)                                                                         \
    X(RECOVERY_ACTION, "recovery-action")   /* nvmlDeviceGpuRecoveryAction_t */                \
    X(REMAP_PENDING, "remap-pending")                                                          \
    X(REMAP_FAILED, "remap-failed")                                                            \
    X(REMAPPED, "remapped-rows")            /* after corrected errors */                       \
    X(RETIRED_SINGLE, "retired-single-bit") /* pages */                                        \
    X(RETIRED_DOUBLE, "retired-double-bit")                                                    \
    X(PCIE_REPLAYS, "pcie-replays")                                                            \
    X(PCIE_CORRECTABLE, "pcie-correctable") /* errors */                                       \
    X(PCIE_NON_FATAL, "pcie-non-fatal")                                                        \
    X(PCIE_FATAL, "pcie-fatal")                                                                \
    X(NVLINK_LINKS, "nvlink-links")         /* that are up; until it is set there are none */  \
    X(NVLINK_ERRORS, "nvlink-errors")                                                          \
    X(NVLINK_KIB, "nvlink-kib")             /* sent, and received as much */                   \
    X(ENCODER, "encoder")                   /* percent */                                      \
    X(DECODER, "decoder")                                                                      \
    X(MEMORY_CELSIUS, "memory-temperature")                                                    \
    X(TENSOR, "tensor")                     /* percent of the time in which SMs are active */

enum hw_setting {
#define X(name, text) HW_##name,
    HW_SETTINGS(X)
#undef X
    HW_SETTING_COUNT
};

struct hw_params {
#define X(name, value) uint64_t name;
    HW_PARAMS(X)
#undef X
};
#define HW_PARAM_COUNT (sizeof(struct hw_params) / sizeof(uint64_t))

enum hw_kind { /* what the bytes of a client are for */
    HW_CONTEXT,
    HW_MODULE,
    HW_DATA,
    HW_POOL,
    HW_GRAPH,
    HW_VMM,
    HW_ARRAY,
    HW_MANAGED,
    HW_ADOPTED, /* shared memory whose owner died */
    HW_KINDS
};

enum hw_state { HW_FREE, HW_LIVE, HW_TEARDOWN, HW_GONE };
enum hw_work { HW_KERNEL, HW_COPY, HW_MARK, HW_HOST };
enum hw_progress { HW_QUEUED, HW_RUNNING, HW_DONE };
enum hw_fault { HW_FAULT_NONE, HW_FAULT_LOST };
enum hw_mode { HW_SHARED, HW_PROHIBITED = 2, HW_EXCLUSIVE }; /* nvmlComputeMode_t */

struct hw_log {
    uint64_t count;
    struct {
        uint64_t where, old;
    } entry[HW_LOG];
};

struct hw_lock {
    union {
        pthread_mutex_t mutex;
        uint64_t words[16];
    };
    struct hw_log log;
};

struct hw_item {
    uint64_t state; /* enum hw_progress */
    uint64_t work;  /* enum hw_work */
    uint64_t lane;
    uint64_t seq;
    uint64_t next;  /* seq of the next item in the lane, 0: none */
    uint64_t after; /* seq that must be done first, 0: none */
    uint64_t barrier; /* 1: everything queued before, in lanes that block, must be done */
    uint64_t left_ns;
    uint64_t width; /* millionths of the card that it fills */
    uint64_t begin_ns, end_ns;
    uint64_t fault; /* the error that it leaves behind */
};

struct hw_client {
    uint64_t state;   /* enum hw_state */
    uint64_t process; /* slot; alive while `generation` is the slot's and its lock is held */
    uint64_t generation;
    uint64_t pid, start_time;
    uint64_t born_ns, gone_ns, back_ns; /* back_ns: when the memory comes back */
    uint64_t contexts;
    uint64_t bytes[HW_KINDS];
    uint64_t managed_bytes; /* allocated, resident or not */
    uint64_t total_bytes, peak_bytes, denied;
    uint64_t own_ns, launches, copies, slices;
    uint64_t space_ns; /* own_ns times the part of the card that it filled */
    uint64_t fault; /* sticky CUDA error */
    uint64_t server; /* index + 1 of the MPS server that it computes under; 0: none; or HW_LOST */
    uint64_t cap; /* millionths of the card that its kernels may fill together; 0: all */
    uint64_t limit_bytes; /* most that this process may have; 0: no limit of MPS */
    uint64_t head, tail; /* seqs [head, tail) stand in the queue */
    uint64_t busy_lanes, free_lanes; /* masks: not empty; do not wait for the default stream */
    struct {
        uint64_t first, last;
    } lane[HW_LANES];
    uint64_t sampled_ns, samples;
    struct {
        uint64_t time_ns, percent;
    } sample[HW_SAMPLES];
    char name[HW_NAME];
    char cgroup[HW_PATH];
    uint64_t groups[HW_DEPTH]; /* numbers of its control group and of those above it */
    struct hw_item item[HW_QUEUE];
};

struct hw_object { /* an allocation that other processes may hold */
    uint64_t state, generation;
    uint64_t bytes, kind;
    uint64_t owner; /* client index + 1: who is charged for it */
    uint64_t holder[HW_HOLDERS]; /* (client index + 1) << 32 | references */
};

struct hw_limit {
    uint64_t used; /* the entry is taken */
    uint64_t group; /* number of the control group */
    uint64_t soft_bytes, hard_bytes;
    char name[HW_PATH]; /* full path of its directory, where the limit was set */
};

struct hw_model { /* what a card is; written once by `create` */
    char name[HW_NAME];
    char profile[HW_NAME]; /* MIG profile of an instance */
    char serial[HW_NAME];
    uint8_t uuid[16];
    uint64_t total_bytes, reserved_bytes, context_bytes;
    uint64_t sms, threads_per_sm, cores, l2_bytes, shared_bytes;
    uint64_t cc_major, cc_minor;
    uint64_t sm_mhz, memory_mhz, bus_bits, copy_mbps;
    uint64_t idle_mw, limit_mw;
    uint64_t pci_domain, pci_bus, pci_device, pci_id, pci_subsystem, pcie_generation;
    uint64_t brand, architecture;
    uint64_t mig;             /* 1: divided; only its instances compute */
    uint64_t parent;          /* card index + 1 of an instance's card */
    uint64_t gpu_instance, compute_instance;
    uint64_t gpu_slices, compute_slices; /* of eight parts of the memory and seven of the SMs; 0: undivided */
};

struct hw_card {
    struct hw_model model;
    struct hw_lock lock;
    uint64_t clock_ns; /* the simulation has come this far */
    uint64_t used_bytes, peak_bytes; /* peak: the most there ever was */
    uint64_t active, rotation; /* client index + 1 that has the card; where to look next */
    uint64_t slice_end_ns, switch_end_ns;
    uint64_t busy_ns, copy_ns, energy_uj;
    uint64_t busy[HW_CLIENTS / 64]; /* clients with queued work */
    uint64_t clients;               /* entries in use or once used */
    uint64_t reaped_ns;
    uint64_t sample_at_ns, sampled_busy_ns, sampled_copy_ns, samples;
    struct {
        uint64_t time_ns, percent, memory_percent;
    } sample[HW_SAMPLES];
    uint64_t temperature_mc; /* thousandths of a degree */
    uint64_t fault;          /* enum hw_fault */
    uint64_t mode;           /* enum hw_mode */
    uint64_t ecc_corrected, ecc_uncorrected;
    uint64_t throttle;       /* nvmlClocksEventReasons bits that were injected */
    uint64_t setting[HW_SETTING_COUNT]; /* by enum hw_setting, one more than the value; 0: not set */
    uint64_t xids;
    struct {
        uint64_t time_ns, xid, pid;
    } xid[HW_XIDS];
    uint64_t random;
    uint64_t objects; /* entries in use or once used */
    struct hw_limit limit[HW_LIMITS];
    struct hw_object object[HW_OBJECTS];
    struct hw_client client[HW_CLIENTS];
};

struct hw_process {
    uint64_t generation, pid, start_time;
};

struct hw_file {
    uint64_t magic, version, bytes;
    uint64_t cards;
    uint64_t realtime_ns; /* CLOCK_REALTIME - CLOCK_MONOTONIC when created */
    uint64_t clock;       /* of the device, in one word: see HW_STANDS */
    char driver[HW_NAME];
    struct hw_params params;
    struct hw_process process[HW_MAX_PROCESSES];
    struct hw_card card[];
};

/* The device's clock: an odd word says that it stands, and at which nanosecond (the other 63 bits); an even one
 * how many nanoseconds it is behind the monotonic clock, which may be less than none. A new box is 0 behind. */
#define HW_STANDS 1ull

/* Byte offsets beyond the file's end where locks stand. */
#define HW_LOCK_PROCESS (1ull << 40)
#define HW_LOCK_EXPORT (1ull << 41)

struct hw_mps { /* the MPS server of a process that joined one */
    uint64_t pid, start_time; /* 0: none */
    uint64_t percent;
    uint64_t limit_bytes[HW_MAX_CARDS]; /* by card; 0: none */
};

struct hw { /* one process's hold on the hardware */
    struct hw_file *file;
    struct hw_mps mps;
    char path[4096];
    uint64_t device, inode;
    uint64_t process, generation; /* our slot; generation 0: none */
};

/* Set one word so that a killed holder of the card's lock leaves nothing half done. */
static inline void hw_put(struct hw_card *card, uint64_t *word, uint64_t value)
{
    struct hw_log *log = &card->lock.log;
    uint64_t n = log->count;
    log->entry[n].where = (uint64_t)((char *)word - (char *)card);
    log->entry[n].old = *word;
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* death is seen in program order: the compiler must keep it */
    __atomic_store_n(&log->count, n + 1, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Everything put so far stays. */
static inline void hw_commit(struct hw_card *card)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&card->lock.log.count, 0, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* hw.c: the file, locks, processes */
uint64_t hw_monotonic(void);
uint64_t hw_now(const struct hw *hw);
int hw_stands(const struct hw *hw);
void hw_spin(uint64_t ns);
void hw_rest(const struct hw *hw, uint64_t until);
int hw_path(char *path, size_t size, const void *near);
int hw_open(struct hw *hw, const char *path);
void hw_close(struct hw *hw);
int hw_join(struct hw *hw);
void hw_lock(struct hw_card *card);
void hw_unlock(struct hw_card *card);
int hw_probe_open(const struct hw *hw);
int hw_process_lives(const struct hw *hw, int probe, const struct hw_client *client);
int hw_export_held(int probe, uint64_t card, uint64_t object);
uint64_t hw_random(struct hw_card *card);
void hw_uuid(const struct hw_model *model, char *text, size_t size);

/* clients.c: clients and their bytes; the card's lock is held */
int hw_attach(struct hw *hw, struct hw_card *card);
int hw_charge(struct hw *hw, struct hw_card *card, struct hw_client *client, enum hw_kind kind, uint64_t bytes);
void hw_refund(struct hw *hw, struct hw_card *card, struct hw_client *client, enum hw_kind kind, uint64_t bytes);
void hw_give_back(const struct hw *hw, const struct hw_card *card, const struct hw_client *client, uint64_t bytes);
uint64_t hw_free_bytes(const struct hw *hw, const struct hw_card *card, const struct hw_client *client,
                       uint64_t *total);
void hw_reap(struct hw *hw, struct hw_card *card, uint64_t now, int force);
struct hw_limit *hw_limit_of(struct hw_card *card, uint64_t group);
uint64_t hw_limit_used(const struct hw_card *card, const struct hw_limit *limit);

/* mps.c: clients under a server; the card's lock is held */
uint64_t hw_server(const struct hw *hw, const struct hw_card *card);
uint64_t hw_cap(const struct hw_card *card, uint64_t percent);
int hw_serve(struct hw *hw, struct hw_card *card, struct hw_client *client);
void hw_server_gone(struct hw_card *card, const struct hw_client *server);
void hw_spread(struct hw_card *card, struct hw_client *client, uint64_t fault);
int hw_taken(const struct hw_card *card, const struct hw_client *client);

/* cgroup.c: control groups */
int hw_cgroup_open(const char *path, uint64_t *id);
int hw_cgroup_gone(const char *path, uint64_t id);
void hw_cgroup_own(uint64_t ids[HW_DEPTH], const char *own);

/* owner.c: the process that owns the hardware, where there is one */
enum hw_question { HW_CHARGE = 1, HW_REFUND, HW_ROOM, HW_SET_LIMIT, HW_GET_LIMIT };
struct hw_answer {
    int64_t status; /* 0 or a negative errno */
    uint64_t a, b, c;
};
int hw_owned(const struct hw *hw);
int hw_ask(const struct hw *hw, const struct hw_card *card, enum hw_question what, uint64_t x, uint64_t y, int fd,
           struct hw_answer *answer);

/* share.c: exported allocations; the card's lock is held */
int hw_share(struct hw_card *card, struct hw_client *client, enum hw_kind kind, uint64_t bytes);
int hw_hold(struct hw *hw, struct hw_card *card, struct hw_client *client, uint64_t object, uint64_t generation);
void hw_drop(struct hw *hw, struct hw_card *card, struct hw_client *client, uint64_t object);
void hw_drop_all(struct hw *hw, struct hw_card *card, struct hw_client *client);
void hw_sweep_exports(struct hw *hw, struct hw_card *card, int probe);
uint64_t hw_imported(const struct hw_card *card, const struct hw_client *client);

/* engine.c: execution; the card's lock is held */
void hw_advance(struct hw *hw, struct hw_card *card, uint64_t now);
uint64_t hw_push(struct hw_card *card, struct hw_client *client, const struct hw_item *work, int free_lane);
int hw_ready(const struct hw_card *card, const struct hw_client *client, const struct hw_item *item);
void hw_finish_host(struct hw_card *card, struct hw_client *client, uint64_t seq, uint64_t now);
uint64_t hw_until(const struct hw_card *card, const struct hw_client *client, uint64_t seq);
void hw_drop_work(struct hw_card *card, struct hw_client *client);
void hw_report_xid(struct hw_card *card, uint64_t xid, uint64_t pid);

/* What was set, or `usual`. */
static inline uint64_t hw_setting_or(const struct hw_card *card, enum hw_setting what, uint64_t usual)
{
    return card->setting[what] ? card->setting[what] - 1 : usual;
}

static inline struct hw_item *hw_item(struct hw_client *client, uint64_t seq)
{
    return &client->item[seq % HW_QUEUE];
}

#endif
