/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Decides which slots are served an object, when its first packet arrives. media/fanout is the
 * executable specification.
 */
#ifndef HAWSER_ADMISSION_H
#define HAWSER_ADMISSION_H

#include "relay_bits.h"
#include "relay_maps.h"

/* An object that begins. */
struct admission {
	const struct relay_track *of;
	struct relay_object *object;
	__u64 now_ns;
	__u64 frame;
	__u64 next;    /* the lowest frame of which no object had begun */
	__u64 word;    /* what is left of the current word of the track's slots */
	__u64 served;  /* slots of that word */
	__u64 dropped;
	__u32 base;    /* the slot of its lowest bit */
	__u32 track;
	__u8 layer;
	__u8 priority;
	__u8 alone; /* each packet decodes alone */
};

static __always_inline __u32 level_of(__u8 priority)
{
	return priority < RELAY_LEVELS ? priority : RELAY_LEVELS - 1;
}

/* Grants what has been earned since the last time. Another CPU that does so at the same moment loses,
 * and decides by what was granted before.
 */
static __always_inline void fill(struct relay_bucket *bucket, const struct relay_rate *rate, __u64 now_ns)
{
	__u64 filled_ns = READ_ONCE(bucket->filled_ns), spent = READ_ONCE(bucket->spent);
	__u64 per_second = READ_ONCE(rate->bytes_per_second), limit = spent + READ_ONCE(rate->depth_bytes);
	__u64 pause_ns = now_ns - filled_ns, elapsed_ns = pause_ns, earned, granted, next_ns = now_ns;

	if (!per_second) {
		bucket->granted = spent;
		bucket->filled_ns = now_ns;
		return;
	}
	if (now_ns < filled_ns)
		return;
	if (elapsed_ns > RELAY_LONGEST_PAUSE_NS)
		elapsed_ns = RELAY_LONGEST_PAUSE_NS;
	earned = elapsed_ns * per_second / 1000000000;
	if (!earned)
		return;
	granted = bucket->granted + earned;
	if (pause_ns <= RELAY_LONGEST_PAUSE_NS && granted < limit)
		next_ns = filled_ns + earned * 1000000000 / per_second;
	if (__sync_val_compare_and_swap(&bucket->filled_ns, filled_ns, next_ns) != filled_ns)
		return;
	bucket->granted = granted < limit ? granted : limit;
}

static __always_inline __s64 balance(const struct relay_bucket *bucket)
{
	return bucket->granted - READ_ONCE(bucket->spent);
}

static __always_inline bool is_broken(const struct relay_missing *missing, const struct admission *admission)
{
	__u32 group = admission->frame >> 32, frame = admission->frame, of = READ_ONCE(missing->group);

	return group < of ||
	       (group == of && frame >= READ_ONCE(missing->first[admission->layer & (MEDIA_LAYERS - 1)]));
}

static __always_inline void clear_missing(struct relay_missing *missing, __u32 group)
{
	missing->group = group;
	__builtin_memset(missing->first, 0xff, sizeof(missing->first));
}

/* Records that a slot is not served the object. */
static __always_inline void break_at(struct relay_missing *missing, const struct admission *admission)
{
	__u32 group = admission->frame >> 32, frame = admission->frame;

	if (group < missing->group)
		return;
	if (group > missing->group)
		clear_missing(missing, group);
	for (__u32 layer = 0; layer < MEDIA_LAYERS; layer++) {
		if (layer >= admission->layer && frame < missing->first[layer])
			missing->first[layer] = frame;
	}
}

static __always_inline enum relay_verdict judge(const struct admission *admission, __u32 slot,
						const struct relay_selection *selection,
						const struct relay_subscription *subscription, struct relay_account *account)
{
	const struct relay_slot *subscriber = bpf_map_lookup_elem(&relay_slots, &slot);
	const struct relay_budget *budget = bpf_map_lookup_elem(&relay_budgets, &slot);
	__u32 level;

	if (!subscriber || !budget || READ_ONCE(subscriber->expires_ns) <= admission->now_ns)
		return SLOT_EXPIRED;
	if (admission->layer >= READ_ONCE(selection->layers))
		return SLOT_NOT_SELECTED;
	if (is_broken(&subscription->missing, admission) || is_broken(&admission->of->lost, admission))
		return SLOT_BROKEN;
	if (admission->priority > budget->least_priority)
		return SLOT_PRIORITY;
	if (!admission->alone && admission->priority == budget->least_priority &&
	    !is_in_share(admission->frame >> 32, READ_ONCE(budget->share)))
		return SLOT_THINNED;
	level = level_of(admission->priority);
	barrier_var(level); /* Linux 6.1 forgets its range on the stack: it has to be masked */
	level &= RELAY_LEVELS - 1;
	fill(&account->buckets[RELAY_TOTAL], &budget->rates[RELAY_TOTAL], admission->now_ns);
	if (budget->rates[RELAY_TOTAL].bytes_per_second &&
	    balance(&account->buckets[RELAY_TOTAL]) <= budget->floors[level])
		return SLOT_TOKENS;
	fill(&account->buckets[level], &budget->rates[level], admission->now_ns);
	if (budget->rates[level].bytes_per_second && balance(&account->buckets[level]) <= 0)
		return SLOT_LIMIT;
	return SLOT_SERVED;
}

/* Begins a subscription at a frame of which no object has begun. */
static __always_inline void join(struct relay_subscription *subscription, const struct relay_selection *selection,
				 const struct admission *admission)
{
	__u32 epoch = READ_ONCE(selection->epoch);
	__u64 joined = READ_ONCE(selection->join);

	clear_missing(&subscription->missing, 0);
	subscription->joined = joined > admission->next ? joined : admission->next;
	__sync_lock_test_and_set(&subscription->epoch, epoch); /* user space then reads the rest */
}

static __always_inline void admit_slot(struct admission *admission, __u32 slot, __u64 bit)
{
	__u32 row = admission->track * RELAY_SLOTS + slot;
	const struct relay_selection *selection = bpf_map_lookup_elem(&relay_selections, &row);
	struct relay_subscription *subscription = bpf_map_lookup_elem(&relay_subscriptions, &row);
	struct relay_account *account = bpf_map_lookup_elem(&relay_accounts, &slot);
	enum relay_verdict verdict = SLOT_BEFORE_JOIN;

	if (!selection || !subscription || !account)
		return;
	if (subscription->epoch != READ_ONCE(selection->epoch))
		join(subscription, selection, admission);
	if (admission->frame >= subscription->joined) {
		verdict = judge(admission, slot, selection, subscription, account);
		if (verdict != SLOT_SERVED)
			break_at(&subscription->missing, admission);
	}
	if (verdict == SLOT_SERVED)
		admission->served |= bit;
	if (verdict >= SLOT_BROKEN)
		admission->dropped |= bit;
	__sync_fetch_and_add(&account->objects[verdict], 1);
}

/* Decides on the lowest slot that is left of a word. */
static long admit_next(__attribute__((unused)) __u32 step, struct admission *admission)
{
	__u64 word = admission->word;

	if (!word)
		return 1;
	admission->word = word & (word - 1);
	admit_slot(admission, admission->base + trailing_zeros(word), word & -word);
	return 0;
}

static long admit_word(__u32 index, struct admission *admission)
{
	if (index >= RELAY_WORDS)
		return 1;
	admission->word = READ_ONCE(admission->of->subscribers[index]);
	admission->base = index * 64;
	admission->served = 0;
	admission->dropped = 0;
	if (admission->word)
		bpf_loop(64, admit_next, admission, 0);
	admission->object->served[index] = admission->served;
	admission->object->dropped[index] = admission->dropped;
	return 0;
}

static __always_inline void admit(struct admission *admission)
{
	bpf_loop(RELAY_WORDS, admit_word, admission, 0);
}

#endif
