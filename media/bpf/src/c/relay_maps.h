/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The tables of a relay. User space maps most of them, so that it changes a thousand rows without a
 * system call.
 */
#ifndef HAWSER_RELAY_MAPS_H
#define HAWSER_RELAY_MAPS_H

#include <bpf/bpf_helpers.h>

#include "relay_abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct relay_endpoint);
	__type(value, __u8);
	__uint(max_entries, 64);
} relay_endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct relay_session);
	__type(value, struct relay_upstream);
	__uint(max_entries, 256);
} relay_upstreams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct relay_alias);
	__type(value, __u32);
	__uint(max_entries, 1024);
} relay_aliases SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct relay_track);
	__uint(max_entries, RELAY_TRACKS);
} relay_tracks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct relay_slot);
	__uint(max_entries, RELAY_SLOTS);
} relay_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct relay_account);
	__uint(max_entries, RELAY_SLOTS);
} relay_accounts SEC(".maps");

/* Row: track * RELAY_SLOTS + slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct relay_selection);
	__uint(max_entries, RELAY_TRACKS * RELAY_SLOTS);
} relay_selections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct relay_subscription);
	__uint(max_entries, RELAY_TRACKS * RELAY_SLOTS);
} relay_subscriptions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct relay_budget);
	__uint(max_entries, RELAY_SLOTS);
} relay_budgets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct relay_ring);
	__uint(max_entries, RELAY_TRACKS);
} relay_rings SEC(".maps");

/* Row: track * RELAY_OBJECTS + position in the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct relay_object);
	__uint(max_entries, RELAY_TRACKS * RELAY_OBJECTS);
} relay_objects SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} relay_registrations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} relay_arrivals SEC(".maps");

/* One row of enum relay_reason for each track, and one for packets of no track. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, (RELAY_TRACKS + 1) * RELAY_REASONS);
} relay_reasons SEC(".maps");

/* BTF includes only types that a variable has: this makes them visible to user space. */
volatile const enum relay_limit relay_limit_type = 0;
volatile const enum relay_track_flag relay_track_flag_type = 0;
volatile const enum relay_reason relay_reason_type = 0;
volatile const enum relay_loss relay_loss_type = 0;
volatile const enum relay_verdict relay_verdict_type = 0;
volatile const struct relay_registration relay_registration_type;
volatile const struct relay_arrival relay_arrival_type;

/* Reads what user space or another CPU may change. */
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))

/* Counts packets of a track; of none, if that is RELAY_TRACKS. */
static __always_inline void count_packets(__u32 track, enum relay_reason reason, __u32 packets)
{
	__u32 index = track * RELAY_REASONS + reason;
	__u64 *counter = bpf_map_lookup_elem(&relay_reasons, &index);

	if (counter)
		*counter += packets;
}

#endif
