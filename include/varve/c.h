// SPDX-License-Identifier: Apache-2.0
//
// varve for C, and for languages that call C. The library is libvarve_c. This header is C99 and
// C++, and needs no other header of varve. docs/c.md shows how to use it, and examples/c/loop.c is
// a whole trainer.
//
//   varve_store* kept = NULL;
//   varve_reader* reader = NULL;
//   float row[4];
//   int failed = varve_store_open("ckpt", VARVE_OPEN_READ, NULL, &kept) != VARVE_OK ||
//                varve_reader_open(kept, "latest", &reader) != VARVE_OK ||
//                varve_reader_read(reader, "bias", row, sizeof(row)) != VARVE_OK;
//   if (failed) fprintf(stderr, "%s\n", varve_last_error());
//   varve_reader_close(reader);
//   varve_store_close(kept);
//
// Errors. Every function that can fail returns a varve_status. varve_last_error says what happened,
// where, and what to do. No function throws an exception or aborts the process. After an error, a
// handle or number that a function gives through a pointer is zero or null, and a struct is
// unchanged, unless the function says otherwise.
//
// Handles. varve_store*, varve_reader* and so on are handles, not addresses that can be read. NULL,
// a closed handle and a handle of another kind give VARVE_INVALID_ARGUMENT. The value of a closed
// handle is never given to another object. Each handle is closed by its own function. Closing NULL
// does nothing. varve_store_close closes the handle. The store itself stays open, with its lock,
// until all readers and writers of it are closed, too.
//
// Structs. The first field of a struct is `struct_size`. The caller sets it to sizeof the struct,
// even where a function fills the struct. Later versions of varve add fields at the end and nowhere
// else. A program that was compiled with an older header goes on working, and a program that sets a
// field that an older library does not know gets an error. Zero in a field of options means its
// default. The first line here sets struct_size, and all other fields to zero:
//
//   varve_tensor wte = {sizeof(varve_tensor)};
//   wte.name = "wte";
//   wte.dtype = VARVE_F32;
//
// Strings are UTF-8 and end with a zero byte. A string that a function returns belongs to varve,
// and the comment of the function says how long the string lives. The caller may free a string that
// it passed as soon as the call has returned.
//
// Thread rule: any thread may call any function. Stores, readers and lists serve many threads at a
// time. Writers, states, flags and hooks serve one call at a time. Another call meanwhile gets
// VARVE_FAILED_PRECONDITION.
#ifndef VARVE_C_H_
#define VARVE_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define VARVE_API __attribute__((visibility("default")))
#define VARVE_CHECKED __attribute__((visibility("default"), warn_unused_result))
#else
#define VARVE_API
#define VARVE_CHECKED
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- Status -------------------------------------------------------------------------------------

// The numbers are never changed. Later versions may add some.
typedef int32_t varve_status;
enum {
  VARVE_OK = 0,
  VARVE_NOT_FOUND = 1,         // no such store, run, step, tensor, item, metric or tag
  VARVE_ALREADY_EXISTS = 2,    // the step or the store is there already
  VARVE_INVALID_ARGUMENT = 3,  // the call breaks a stated rule. Nothing stored was changed
  VARVE_CORRUPTION = 4,        // stored bytes are not what was written
  VARVE_IO_ERROR = 5,          // the file system failed
  VARVE_LOCKED = 6,            // another process or another handle has the store open for writing
  VARVE_UNAVAILABLE = 7,       // memory, a thread, a device or an object store is not available
  VARVE_FAILED_PRECONDITION = 8,  // the state of the object does not allow the call
  VARVE_ABORTED = 9               // the operation was given up
};

// Returns the message of the last call on this thread that failed, "not found: ...". Empty: no call
// has failed. The text belongs to the thread. It is valid until the next call on the same thread
// that fails.
VARVE_API const char* varve_last_error(void);
// Returns the name of a status, "not found". The text stays valid.
VARVE_API const char* varve_status_name(varve_status status);
// Returns the version of the library, "0.1.0". The text stays valid.
VARVE_API const char* varve_version(void);

// ---- Tensors ------------------------------------------------------------------------------------

// Element types, as in safetensors. The numbers are never changed.
enum {
  VARVE_BOOL = 0,
  VARVE_U8 = 1,
  VARVE_I8 = 2,
  VARVE_U16 = 3,
  VARVE_I16 = 4,
  VARVE_U32 = 5,
  VARVE_I32 = 6,
  VARVE_U64 = 7,
  VARVE_I64 = 8,
  VARVE_BF16 = 9,
  VARVE_F16 = 10,
  VARVE_F32 = 11,
  VARVE_F64 = 12,
  VARVE_F8_E4M3 = 13,
  VARVE_F8_E5M2 = 14,
  VARVE_F8_E8M0 = 15,
  VARVE_F4 = 16,
  VARVE_F6_E2M3 = 17,
  VARVE_F6_E3M2 = 18,
  VARVE_C64 = 19
};
// Returns the bits of one element. 0: `dtype` is no element type.
VARVE_API uint32_t varve_dtype_bits(uint32_t dtype);
// Returns the name of an element type, "F32", or "?". The text stays valid.
VARVE_API const char* varve_dtype_name(uint32_t dtype);

// What the trainer uses a tensor for. The numbers are never changed.
enum { VARVE_OTHER = 0, VARVE_PARAMETER = 1, VARVE_BUFFER = 2, VARVE_OPTIMIZER = 3 };

// A tensor in the caller's memory. A writer only reads `data`. Hooks also fill it.
typedef struct varve_tensor {
  size_t struct_size;
  const char* name;
  uint32_t dtype;            // VARVE_F32 ... It must be set, because 0 is VARVE_BOOL
  uint32_t role;             // VARVE_PARAMETER ...
  size_t num_axes;           // 0: one element
  const int64_t* shape;      // the length of each axis
  const int64_t* strides;    // in elements, one for each axis. NULL: dense, row-major
  void* data;                // the first element
  const char* derived_from;  // the name of the FP32 master of this 16-bit tensor. NULL: it has none
} varve_tensor;

// A stored tensor. The pointers are valid until the reader is closed.
typedef struct varve_tensor_info {
  size_t struct_size;
  const char* name;
  uint32_t dtype;
  uint32_t role;
  size_t num_axes;
  const int64_t* shape;
  const char* derived_from;  // NULL: it has no master
  const char* alias_of;      // the name of a tensor that shared its memory. NULL: none
  uint64_t num_bytes;        // of the dense tensor, as varve_reader_read gives it
} varve_tensor_info;

// ---- Stores -------------------------------------------------------------------------------------

typedef struct varve_store varve_store;

enum {
  VARVE_OPEN_READ = 0,    // for reading, even while another process writes
  VARVE_OPEN_WRITE = 1,   // for reading and writing
  VARVE_OPEN_CREATE = 2,  // as VARVE_OPEN_WRITE, and makes the store if there is none
  VARVE_CREATE_NEW = 3    // makes the store. VARVE_ALREADY_EXISTS if there is one
};
// How much work the encoder does. Every mode is lossless.
enum {
  VARVE_COMPRESSION_AUTO = 0,
  VARVE_COMPRESSION_NONE = 1,
  VARVE_COMPRESSION_FAST = 2,
  VARVE_COMPRESSION_MAX = 3
};

// Which entropy coder encodes the bytes that can be compressed. Each process that opens the store
// for writing chooses it anew. In a store that was created with ZSTD (not with AUTO), or by an
// older version, all saves write zstd (varve/options.h). AUTO is rANS where this machine reads it
// faster than zstd.
enum { VARVE_ENTROPY_AUTO = 0, VARVE_ENTROPY_ZSTD = 1, VARVE_ENTROPY_RANS = 2 };

typedef struct varve_store_options {
  size_t struct_size;
  uint32_t compression;  // VARVE_COMPRESSION_AUTO ...
  uint32_t num_threads;  // worker threads of a save, a read and a check. 0: one for each core
  uint64_t pipeline_budget_bytes;  // of memory for chunks that are being encoded. 0: 256 MiB
  uint32_t entropy;                // VARVE_ENTROPY_AUTO ...
} varve_store_options;

// Opens the store in a folder. `path` may also be the root of a group (varve/group.h), unless
// `mode` is VARVE_CREATE_NEW. `options` may be NULL. VARVE_NOT_FOUND: there is no store.
// VARVE_ALREADY_EXISTS: there is one (VARVE_CREATE_NEW). VARVE_LOCKED: another process or another
// handle has it open for writing. VARVE_CORRUPTION: the store is damaged (see `varve repair`).
// VARVE_FAILED_PRECONDITION has five cases. A newer varve made the store. The folder holds
// something else. The folder lies inside a store, and the call would make another one there. The
// call opens a member of a group for writing: open the root of the group instead. The call opens a
// sealed store (varve/seal.h) for writing: C cannot give its key.
VARVE_CHECKED varve_status varve_store_open(const char* path, uint32_t mode,
                                            const varve_store_options* options,
                                            varve_store** store);
VARVE_API void varve_store_close(varve_store* store);

// These functions change metrics and tags of committed steps. If the step has a metric of this
// name, the new value replaces the old one. If another step of the run has the tag, the tag moves.
// The change is durable on return.
VARVE_CHECKED varve_status varve_store_set_metric(varve_store* store, const char* run,
                                                  uint64_t step, const char* name, double value);
VARVE_CHECKED varve_status varve_store_set_tag(varve_store* store, const char* run, uint64_t step,
                                               const char* tag);
VARVE_CHECKED varve_status varve_store_remove_tag(varve_store* store, const char* run,
                                                  const char* tag);

// What a reclaim did. A chunk is live if a step uses it, else dead. The bytes of chunks are encoded
// bytes.
typedef struct varve_reclaim_report {
  size_t struct_size;
  uint64_t freed_bytes;        // of dead chunks that were removed from the disk
  uint64_t rewritten_bytes;    // of live chunks copied, because their files held dead chunks
  uint64_t pending_bytes;      // of dead chunks that are still on disk
  uint64_t disk_bytes_before;  // allocated to the store by the file system, before the reclaim
  uint64_t disk_bytes_after;   // the same after the reclaim
} varve_reclaim_report;

// Drops steps of a run. VARVE_NOT_FOUND names all steps that are missing.
// VARVE_FAILED_PRECONDITION: the store is open for reading, or a save in progress is based on one
// of the steps. After either error nothing is dropped. `reclaims` other than 0 frees the space at
// once. `report`, which may be NULL, says what this reclaim did. Without a reclaim, or while
// another reclaim is under way, freed_bytes and rewritten_bytes are 0. Warnings about damaged
// records are printed to standard error.
VARVE_CHECKED varve_status varve_store_drop(varve_store* store, const char* run,
                                            const uint64_t* steps, size_t num_steps, int reclaims,
                                            varve_reclaim_report* report);
// Gives the space of dead chunks back to the file system. `all` other than 0 rewrites every file
// with a dead chunk. `report` may be NULL. Warnings about damaged records of a group are printed to
// standard error.
VARVE_CHECKED varve_status varve_store_reclaim(varve_store* store, int all,
                                               varve_reclaim_report* report);

typedef struct varve_check_report {
  size_t struct_size;
  uint64_t num_errors;
  uint64_t num_steps;
  uint64_t num_tensors;
  uint64_t num_chunks;  // distinct chunks that some step uses
  uint64_t bytes_read;  // encoded bytes that were read and verified. 0 without `reads_data`
} varve_check_report;

// Verifies the store and changes nothing. `reads_data` other than 0 reads and verifies every chunk.
// VARVE_CORRUPTION: the store is damaged. The message lists the errors, 20 at most, and `report` is
// filled all the same. `report` may be NULL.
VARVE_CHECKED varve_status varve_store_check(varve_store* store, int reads_data,
                                             varve_check_report* report);

typedef struct varve_store_stats {
  size_t struct_size;
  uint64_t num_runs;
  uint64_t num_steps;
  uint64_t num_chunks;     // distinct chunks that some step uses
  uint64_t logical_bytes;  // raw bytes of all steps, as if they shared nothing
  uint64_t unique_bytes;   // raw bytes of the num_chunks chunks
  uint64_t stored_bytes;   // encoded bytes of these chunks
  uint64_t pending_bytes;  // encoded bytes of dead chunks that are still on disk
  uint64_t disk_bytes;     // bytes that the file system has allocated to the store
} varve_store_stats;
// Warnings about damaged records and about folders that cannot be read are printed to standard
// error. The numbers leave out what these hold.
VARVE_CHECKED varve_status varve_store_get_stats(varve_store* store, varve_store_stats* stats);

// ---- Runs and steps -----------------------------------------------------------------------------

// A list of the runs of a store, or of the steps of a run, as they were when it was made.
typedef struct varve_list varve_list;

// This struct has no struct_size, because varve_step_info gives arrays of it. Its fields never
// change.
typedef struct varve_metric {
  const char* name;
  double value;
} varve_metric;

// The pointers are valid until the list is closed.
typedef struct varve_run_info {
  size_t struct_size;
  const char* name;
  uint64_t num_steps;
  const char* forked_from_run;  // NULL: the run is no fork
  uint64_t forked_from_step;
} varve_run_info;

// The pointers are valid until the list or the reader is closed.
typedef struct varve_step_info {
  size_t struct_size;
  const char* run;
  uint64_t step;
  int64_t created_us;  // microseconds since 1970, UTC
  uint64_t num_tensors;
  uint64_t logical_bytes;  // raw bytes of all tensors
  uint64_t new_bytes;      // raw bytes of chunks that were not in the store before
  uint64_t stored_bytes;   // encoded bytes of these chunks
  size_t num_metrics;
  const varve_metric* metrics;  // by name
  size_t num_tags;
  const char* const* tags;  // sorted
} varve_step_info;

VARVE_CHECKED varve_status varve_list_runs(varve_store* store, varve_list** list);
// The steps of a run, in ascending order.
VARVE_CHECKED varve_status varve_list_steps(varve_store* store, const char* run, varve_list** list);
VARVE_CHECKED varve_status varve_list_size(varve_list* list, size_t* size);
// `list` must be of runs for varve_list_run, and of steps for varve_list_step. `index` must be less
// than the size of the list. VARVE_INVALID_ARGUMENT: the list is of the other kind, or `index` is
// too large.
VARVE_CHECKED varve_status varve_list_run(varve_list* list, size_t index, varve_run_info* info);
VARVE_CHECKED varve_status varve_list_step(varve_list* list, size_t index, varve_step_info* info);
VARVE_API void varve_list_close(varve_list* list);

// ---- What a trainer remembers besides tensors ---------------------------------------------------

// varve stores these values. The hooks use only global_step. If a lower metric is better, set
// best_metric to INFINITY until it has a first value.
typedef struct varve_progress {
  size_t struct_size;
  int64_t global_step;  // optimizer steps done
  int64_t epoch;
  int64_t consumed_samples;
  double best_metric;
  double last_loss;
} varve_progress;

// ---- Saving a step ------------------------------------------------------------------------------

typedef struct varve_writer varve_writer;

// What a save does when the run has its step already. ERROR: fails with VARVE_ALREADY_EXISTS.
// REPLACE: replaces the old step. FORK: moves the old step and the later ones to a new run, which
// is RUN~1, or RUN~2 and so on if there is a RUN~1.
enum { VARVE_EXISTING_ERROR = 0, VARVE_EXISTING_REPLACE = 1, VARVE_EXISTING_FORK = 2 };

typedef struct varve_save_options {
  size_t struct_size;
  const char* run;       // NULL: "main"
  uint32_t on_existing;  // VARVE_EXISTING_ERROR ...
  uint32_t num_threads;  // 0: as the store
} varve_save_options;

typedef struct varve_save_report {
  size_t struct_size;
  uint64_t num_tensors;
  uint64_t logical_bytes;
  uint64_t new_bytes;
  uint64_t stored_bytes;
  double seconds;
} varve_save_report;

// Starts a step. `options` may be NULL. The run is made if it is new. VARVE_ALREADY_EXISTS: the run
// has this step, and on_existing is VARVE_EXISTING_ERROR. VARVE_FAILED_PRECONDITION: the store is
// open for reading.
VARVE_CHECKED varve_status varve_writer_open(varve_store* store, uint64_t step,
                                             const varve_save_options* options,
                                             varve_writer** writer);
// Adds a tensor. `data` must stay valid and unchanged until commit or close has returned. The other
// fields are copied. After VARVE_INVALID_ARGUMENT the writer can still be used.
VARVE_CHECKED varve_status varve_writer_put_tensor(varve_writer* writer,
                                                   const varve_tensor* tensor);
// Adds opaque bytes, up to 64 MiB, which are copied.
VARVE_CHECKED varve_status varve_writer_put_item(varve_writer* writer, const char* name,
                                                 const void* bytes, size_t size);
VARVE_CHECKED varve_status varve_writer_set_progress(varve_writer* writer,
                                                     const varve_progress* progress);
VARVE_CHECKED varve_status varve_writer_set_metric(varve_writer* writer, const char* name,
                                                   double value);
VARVE_CHECKED varve_status varve_writer_add_tag(varve_writer* writer, const char* tag);
// Makes the step durable and visible, atomically. After an error nothing is visible. After this
// call, even after an error, the writer can only be closed, and must be closed. `report` may be
// NULL.
VARVE_CHECKED varve_status varve_writer_commit(varve_writer* writer, varve_save_report* report);
// Gives the save up, unless it was committed.
VARVE_API void varve_writer_close(varve_writer* writer);

// ---- Reading a step -----------------------------------------------------------------------------

typedef struct varve_reader varve_reader;

// Opens a step. `step` is a step expression: "100", "latest", "best:loss", a tag, or one of these
// after "RUN@".
VARVE_CHECKED varve_status varve_reader_open(varve_store* store, const char* step,
                                             varve_reader** reader);
VARVE_API void varve_reader_close(varve_reader* reader);
VARVE_CHECKED varve_status varve_reader_info(varve_reader* reader, varve_step_info* info);

// The tensors, ordered by name. A tensor that ranks have saved in shards is one global tensor.
VARVE_CHECKED varve_status varve_reader_num_tensors(varve_reader* reader, size_t* num_tensors);
VARVE_CHECKED varve_status varve_reader_tensor(varve_reader* reader, size_t index,
                                               varve_tensor_info* info);
VARVE_CHECKED varve_status varve_reader_find(varve_reader* reader, const char* name,
                                             varve_tensor_info* info);
// Reads a whole tensor, row-major. `size` must be num_bytes of the tensor. Every byte is verified.
// The contents of `out` are unspecified after an error.
VARVE_CHECKED varve_status varve_reader_read(varve_reader* reader, const char* name, void* out,
                                             size_t size);
// Reads the elements begins[axis] to ends[axis] - 1 of each axis, row-major. `num_axes` must be
// that of the tensor. `size` is the number of bytes of the slice.
VARVE_CHECKED varve_status varve_reader_read_slice(varve_reader* reader, const char* name,
                                                   const int64_t* begins, const int64_t* ends,
                                                   size_t num_axes, void* out, size_t size);

// The items, ordered by name. The name is valid until the reader is closed.
VARVE_CHECKED varve_status varve_reader_num_items(varve_reader* reader, size_t* num_items);
VARVE_CHECKED varve_status varve_reader_item_name(varve_reader* reader, size_t index,
                                                  const char** name);
// Reads an item. `size` gets the number of its bytes. VARVE_NOT_FOUND: there is no such item.
// VARVE_INVALID_ARGUMENT: the bytes do not fit into `capacity`. `size` is set even then, so call
// first with capacity 0 to learn the size.
VARVE_CHECKED varve_status varve_reader_read_item(varve_reader* reader, const char* name, void* out,
                                                  size_t capacity, size_t* size);
// VARVE_NOT_FOUND: the save set no progress.
VARVE_CHECKED varve_status varve_reader_progress(varve_reader* reader, varve_progress* progress);

// ---- The state of a training --------------------------------------------------------------------

// Lists what hooks save and load: tensors and items in the caller's memory, and the progress.
typedef struct varve_state varve_state;

// An item that stands for a variable of the caller. A load fills the variable. varve reads the
// variable only when it saves a step. If an item has more than 64 MiB, no save starts.
typedef struct varve_item {
  size_t struct_size;
  const char* name;
  void* data;
  size_t capacity;  // bytes of `data`
  size_t* size;     // bytes in use. A load sets it. NULL: always all of `capacity`
} varve_item;

VARVE_CHECKED varve_status varve_state_create(varve_state** state);
// Closes the handle. Hooks that were started with the state keep it until they are closed.
VARVE_API void varve_state_close(varve_state* state);
// The memory of tensors, and `data` and `*size` of items, must stay where they are until the state,
// and hooks that were started with it, are closed. Names are copied.
VARVE_CHECKED varve_status varve_state_add_tensor(varve_state* state, const varve_tensor* tensor);
VARVE_CHECKED varve_status varve_state_add_item(varve_state* state, const varve_item* item);
// Sets all fields of the progress.
VARVE_CHECKED varve_status varve_state_set_progress(varve_state* state,
                                                    const varve_progress* progress);
VARVE_CHECKED varve_status varve_state_get_progress(varve_state* state, varve_progress* progress);
// Sets a metric. The next save has it, and so have later saves, until this function sets another
// value for the name.
VARVE_CHECKED varve_status varve_state_set_metric(varve_state* state, const char* name,
                                                  double value);
// A tag for the next save. It is set once: later saves do not get it.
VARVE_CHECKED varve_status varve_state_add_tag(varve_state* state, const char* tag);

// ---- Flags --------------------------------------------------------------------------------------

// The checkpoint flags of a trainer: "--save", "--save-interval", "--load" and so on
// (docs/hooks.md).
typedef struct varve_flags varve_flags;

VARVE_CHECKED varve_status varve_flags_create(varve_flags** flags);
VARVE_API void varve_flags_close(varve_flags* flags);
// Sets one flag. `name` has its dashes, as in "--save". `value` is NULL or "" for a flag without a
// value. VARVE_INVALID_ARGUMENT names a flag that does not exist, or a wrong value.
VARVE_CHECKED varve_status varve_flags_set(varve_flags* flags, const char* name, const char* value);
// Sets the flags of a command line and removes them from it. Other words stay, in their order. A
// word "--" ends the flags. After an error nothing has changed.
VARVE_CHECKED varve_status varve_flags_take(varve_flags* flags, int* argc, char** argv);
// Returns a line for each flag: its name, its value, what it does. The text stays valid. Empty:
// there was no memory for it.
VARVE_API const char* varve_flags_help(void);

// ---- Hooks --------------------------------------------------------------------------------------

// What a training loop of one rank needs: loads, saves in the background, retention, signals.
//
//   int stop = 0;
//   for (int64_t i = 1; !stop && i <= last; ++i) {  // after a load: from global_step + 1
//     ForwardAndBackward();
//     if (varve_hooks_before_optimizer_step(loop) != VARVE_OK) break;
//     OptimizerStep();  // the tensors may change from here
//     if (varve_hooks_after_step(loop, i, i == last, &stop) != VARVE_OK) break;
//   }
typedef struct varve_hooks varve_hooks;

typedef struct varve_hooks_options {
  size_t struct_size;
  // Gets one line of text at a time, without a newline. Several threads may call it at the same
  // time. It must not call varve. NULL: lines go to standard error.
  void (*log)(void* context, const char* line);
  void* log_context;  // must stay valid until the hooks are closed
  // 0: the size of the state or half of the free memory, whichever is smaller
  uint64_t staging_budget_bytes;
  // A check for new trainers: the share of chunks, 0 to 1, that the start of a save digests, and
  // before_optimizer_step digests again. The save fails if a tensor has changed in between, because
  // before_optimizer_step was then called too late. Set 1 for a new trainer.
  double check_staging;
  // How many times a commit that failed with an I/O error is tried again, at most 1,000.
  uint32_t retries;
  uint32_t skips_when_busy;  // not 0: a save is skipped while the save before is in progress
  uint32_t compression;      // VARVE_COMPRESSION_AUTO ...
  uint32_t num_threads;      // worker threads of each save. 0: half of the cores
} varve_hooks_options;

// What the start has loaded. The pointer is valid until the hooks are closed.
typedef struct varve_load_report {
  size_t struct_size;
  const char* run;
  uint64_t step;
  uint64_t num_tensors;
  uint64_t num_bytes;
  double seconds;
} varve_load_report;

enum {
  VARVE_STOP_NONE = 0,
  VARVE_STOP_LAST_STEP = 1,
  VARVE_STOP_EXIT_INTERVAL = 2,
  VARVE_STOP_EXIT_DURATION = 3,
  VARVE_STOP_SIGNAL = 4
};

// Checks the flags. Loads into the state if --load is given. Prepares saves and catches SIGTERM and
// SIGUSR1 if --save is given. The optimizer's state must be listed in `state` before this call.
// `options` may be NULL. `flags` and `options` are copied.
VARVE_CHECKED varve_status varve_hooks_start(const varve_flags* flags, varve_state* state,
                                             const varve_hooks_options* options,
                                             varve_hooks** hooks);
// VARVE_NOT_FOUND: nothing was loaded.
VARVE_CHECKED varve_status varve_hooks_loaded(varve_hooks* hooks, varve_load_report* report);
// Returns when the tensors may change. Call it before each optimizer step.
VARVE_CHECKED varve_status varve_hooks_before_optimizer_step(varve_hooks* hooks);
// Says whether after_step of this step will save. Call it with the `is_last` that after_step will
// get. after_step does what the answer says. Only with skips_when_busy may it still skip the save.
VARVE_CHECKED varve_status varve_hooks_will_save(varve_hooks* hooks, int64_t step, int is_last,
                                                 int* will_save);
// Call it as the last thing in the loop body. It sets global_step of the state to `step`, and saves
// when a save is due. `stop` becomes 1 when the trainer must stop. With --save, all saves are
// durable then. VARVE_FAILED_PRECONDITION: varve_hooks_before_optimizer_step was not called after a
// save had started. VARVE_INVALID_ARGUMENT: `step` is negative, or the state is wrong. No save
// starts then. Other errors are those of a failed save.
VARVE_CHECKED varve_status varve_hooks_after_step(varve_hooks* hooks, int64_t step, int is_last,
                                                  int* stop);
// Why the trainer must stop, VARVE_STOP_NONE ..., and the code to exit with: 0, or 75 after a
// signal. Each pointer may be NULL. After an error, what they point to is unchanged.
VARVE_CHECKED varve_status varve_hooks_stop_reason(varve_hooks* hooks, uint32_t* reason,
                                                   int* exit_code);
// These functions set a metric or a tag of a step that was saved, for what is known only later.
// They wait if this step is being saved, and return the error of its last save if that has failed.
// VARVE_FAILED_PRECONDITION: --save was not given. VARVE_NOT_FOUND: there is no such step.
VARVE_CHECKED varve_status varve_hooks_set_metric(varve_hooks* hooks, uint64_t step,
                                                  const char* name, double value);
VARVE_CHECKED varve_status varve_hooks_set_tag(varve_hooks* hooks, uint64_t step, const char* tag);
// Waits for the last save, then for the last push, and closes the store. Returns the first error of
// a save or of the retention after it. If there was none, and --remote was given, it returns an
// error if a step that is due (docs/remote.md) was not sent.
VARVE_CHECKED varve_status varve_hooks_finish(varve_hooks* hooks);
// Does what finish does, unless finish was called. An error that no call has returned is printed to
// standard error.
VARVE_API void varve_hooks_close(varve_hooks* hooks);

#ifdef __cplusplus
}
#endif

#endif  // VARVE_C_H_
