/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The objects of a track that began last, and the packets of them that were seen. media/fanout is the
 * executable specification.
 */
#ifndef HAWSER_OBJECTS_H
#define HAWSER_OBJECTS_H

#include "admission.h"

#define LOCK_ATTEMPTS (1 << 20) /* a few milliseconds; deciding on an object takes 30 us at most */

/* Packets of one object with consecutive indexes, and what is decided on them. Of each CPU, because
 * it is too much for the stack.
 */
struct offer {
	__u64 now_ns;
	__u64 frame;
	__u64 begun_ns; /* when it was decided who is served the object */
	__u32 track;
	__u32 alias;
	__u32 bytes;
	__u32 first;
	__u32 packets;
	__u32 count; /* 0 = not known */
	__u8 layer;
	__u8 priority;
	__u8 level;
	__u8 alone; /* each packet decodes alone */
	__u8 busy; /* the program is at work on this CPU */
	__u64 slots[RELAY_WORDS]; /* that the packets go to */
	__u8 headers[64];	  /* that the packet had, if a copy goes to user space */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct offer);
	__uint(max_entries, 1);
} relay_offers SEC(".maps");

struct lock {
	struct relay_ring *ring;
	bool held;
};

static long try_lock(__attribute__((unused)) __u32 attempt, struct lock *lock)
{
	lock->held = !__sync_val_compare_and_swap(&lock->ring->busy, 0, 1);
	return lock->held;
}

/* A spin lock of the kernel allows no calls of functions while it is held. */
static __always_inline bool lock_ring(struct relay_ring *ring)
{
	struct lock lock = { .ring = ring };

	bpf_loop(LOCK_ATTEMPTS, try_lock, &lock, 0);
	return lock.held;
}

static __always_inline void unlock_ring(struct relay_ring *ring)
{
	__sync_lock_test_and_set(&ring->busy, 0);
}

/* Returns the position of the offered object; RELAY_OBJECTS if it is not remembered. */
static __always_inline __u32 find(const struct relay_ring *ring, const struct offer *offer)
{
	for (__u32 back = 1; back <= RELAY_OBJECTS; back++) {
		__u32 position = (ring->next - back) & (RELAY_OBJECTS - 1);

		if (ring->frames[position] == offer->frame && ring->layers[position] == offer->layer + 1)
			return position;
	}
	return RELAY_OBJECTS;
}

/* Returns whether an object that is not remembered may have been before. */
static __always_inline bool is_outdated(const struct relay_ring *ring, const struct offer *offer)
{
	return offer->frame < ring->forgotten ||
	       (offer->frame == ring->forgotten && offer->layer + 1u <= ring->forgotten_layer);
}

/* Records what was sent of an object to whom. */
static __noinline int register_object(__u32 track, __u64 frame, __u8 layer, struct relay_object *object, bool ended)
{
	struct relay_registration *record;

	if (!object)
		return 0;
	record = bpf_ringbuf_reserve(&relay_registrations, sizeof(*record), 0);
	object->registered = ended;
	if (!record) {
		count_packets(track, RELAY_LOST_REGISTRATIONS, 1);
		return 0;
	}
	record->frame = frame;
	record->begun_ns = object->begun_ns;
	record->newest_ns = object->newest_ns;
	record->bytes = object->bytes;
	record->alias = object->alias;
	record->track = track;
	record->packets = object->packets;
	record->count = object->count;
	record->layer = layer;
	record->priority = object->priority;
	record->ended = ended;
	record->reserved = 0;
	for (__u32 i = 0; i < RELAY_WORDS; i++) {
		record->served[i] = object->served[i];
		record->dropped[i] = object->dropped[i];
	}
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/* Remembers the object no longer that began first. */
static __noinline int forget(struct relay_ring *ring, __u32 track, struct relay_object *object)
{
	__u32 position = ring->next & (RELAY_OBJECTS - 1);
	__u64 frame = ring->frames[position];
	__u32 layer = ring->layers[position];

	if (!layer)
		return 0;
	if (!object->registered)
		register_object(track, frame, layer - 1, object, true);
	if (frame > ring->forgotten || (frame == ring->forgotten && layer > ring->forgotten_layer)) {
		ring->forgotten = frame;
		ring->forgotten_layer = layer;
	}
	return 0;
}

/* Begins the offered object in the place of the one that began first. */
static __noinline int begin(struct relay_ring *ring, const struct offer *offer, struct relay_object *object)
{
	__u32 position = ring->next & (RELAY_OBJECTS - 1);
	struct admission admission = {
		.object = object,
		.now_ns = offer->now_ns,
		.frame = offer->frame,
		.track = offer->track,
		.layer = offer->layer,
		.priority = offer->priority,
		.alone = offer->alone,
	};

	admission.of = bpf_map_lookup_elem(&relay_tracks, &offer->track);
	if (!admission.of)
		return 0;
	forget(ring, offer->track, object);
	ring->frames[position] = offer->frame;
	ring->layers[position] = offer->layer + 1;
	ring->next = (position + 1) & (RELAY_OBJECTS - 1);
	object->begun_ns = offer->now_ns;
	object->bytes = 0;
	object->alias = offer->alias;
	object->packets = 0;
	object->count = 0;
	object->highest = 0;
	object->priority = offer->priority;
	object->registered = 0;
	for (__u32 i = 0; i < RELAY_PACKETS / 64; i++)
		object->seen[i] = 0;
	admission.next = ring->begun ? ring->newest + (ring->newest != ~0ULL) : 0;
	if (offer->frame > ring->newest)
		ring->newest = offer->frame;
	ring->begun++;
	admit(&admission);
	return 0;
}

/* Records the arrival of packets. Trains of which a part is not new are refused. */
static __always_inline enum relay_reason add(struct relay_object *object, const struct offer *offer)
{
	__u32 end = offer->first + offer->packets, count = object->count ?: offer->count, highest = object->highest;

	for (__u32 i = 0; i < RELAY_SEGMENTS / 64 + 1; i++) {
		__u32 word = (offer->first / 64 + i) & (RELAY_PACKETS / 64 - 1);

		if (object->seen[word] & bits_in_word(offer->first, end, offer->first / 64 + i))
			return offer->packets > 1 ? RELAY_NOT_SPLIT : RELAY_DUPLICATE;
	}
	if (highest < end - 1)
		highest = end - 1;
	if ((offer->count && offer->count != count) || (count && highest >= count))
		return offer->packets > 1 ? RELAY_NOT_SPLIT : RELAY_CONTRADICTION;
	for (__u32 i = 0; i < RELAY_SEGMENTS / 64 + 1; i++) {
		__u32 word = (offer->first / 64 + i) & (RELAY_PACKETS / 64 - 1);

		object->seen[word] |= bits_in_word(offer->first, end, offer->first / 64 + i);
	}
	object->count = count;
	object->highest = highest;
	object->packets += offer->packets;
	object->bytes += offer->bytes;
	object->newest_ns = offer->now_ns;
	return RELAY_FORWARDED;
}

static __always_inline enum relay_reason observe_locked(struct relay_ring *ring, struct offer *offer)
{
	__u32 position = find(ring, offer), row;
	bool is_new = position >= RELAY_OBJECTS;
	struct relay_object *object;
	enum relay_reason reason;

	if (is_new) {
		if (is_outdated(ring, offer))
			return RELAY_OUTDATED;
		position = ring->next & (RELAY_OBJECTS - 1);
	}
	row = offer->track * RELAY_OBJECTS + position;
	object = bpf_map_lookup_elem(&relay_objects, &row);
	if (!object)
		return RELAY_NO_TRACK;
	if (is_new)
		begin(ring, offer, object);
	reason = add(object, offer);
	if (reason)
		return reason;
	offer->begun_ns = object->begun_ns;
	offer->level = level_of(object->priority);
	for (__u32 i = 0; i < RELAY_WORDS; i++)
		offer->slots[i] = object->served[i];
	if (object->packets == object->count)
		register_object(offer->track, offer->frame, offer->layer, object, true);
	else if (object->packets == offer->packets)
		register_object(offer->track, offer->frame, offer->layer, object, false);
	return RELAY_FORWARDED;
}

/* Returns what becomes of packets with a right tag, and if they are forwarded, to which slots. */
static __noinline int observe(struct offer *offer)
{
	struct relay_ring *ring = bpf_map_lookup_elem(&relay_rings, &offer->track);
	enum relay_reason reason;

	if (!ring)
		return RELAY_NO_TRACK;
	if (offer->first + offer->packets > RELAY_PACKETS || offer->count > RELAY_PACKETS)
		return offer->packets > 1 ? RELAY_NOT_SPLIT : RELAY_TOO_MANY_PACKETS;
	if (!lock_ring(ring))
		return RELAY_CONTENDED;
	reason = observe_locked(ring, offer);
	unlock_ring(ring);
	return reason;
}

#endif
