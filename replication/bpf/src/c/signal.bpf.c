/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* In-band signals: TCX at the ingress of the devices that they arrive on. A signal sets a flow's
 * policy without user space, which gets a record of it. All packets to the signals' port at the
 * configured addresses are consumed here.
 */
#include "sending.h"
#include "skb.h"

#include <linux/pkt_cls.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct signal_settings);
	__uint(max_entries, 1);
} signal_settings SEC(".maps");

/* CLOCK_TAI - CLOCK_REALTIME: programs can read only the former. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} tai_offset_ns SEC(".maps");

/* Key: an address that signals are sent to, IPv4 mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u8[16]);
	__type(value, __u8);
	__uint(max_entries, 64);
} signal_addresses SEC(".maps");

/* Index: enum signal_outcome. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, SIGNAL_OUTCOMES);
} signal_outcomes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} signal_events SEC(".maps");

/* Time of the latest record of a rejected signal. */
__u64 rejection_recorded_ns;

/* BTF includes only types that a variable has: this makes them visible to user space. */
volatile const struct signal_event signal_event_type;
volatile const enum signal_outcome signal_outcome_type = 0;

static __always_inline void count_outcome(__u32 outcome)
{
	__u64 *counter = bpf_map_lookup_elem(&signal_outcomes, &outcome);

	if (counter)
		(*counter)++;
}

/* Before the tag is verified, the only thing written is a counter. */
static __always_inline int reject(enum signal_outcome outcome)
{
	count_outcome(outcome);
	return TC_ACT_SHOT;
}

/* Limits the rate of records: an attacker who replays signals can have any number of them counted,
 * but not recorded.
 */
static __always_inline bool may_record_rejection(__u64 now_ns)
{
	__u64 before_ns = *(volatile __u64 *)&rejection_recorded_ns;

	return now_ns - before_ns >= REJECTIONS_EVERY_NS &&
	       __sync_val_compare_and_swap(&rejection_recorded_ns, before_ns, now_ns) == before_ns;
}

/* Called after counting, so that a reader of the record finds the count. */
static __always_inline void record(const struct signal *signal, enum signal_outcome outcome)
{
	struct signal_event event = { .at_ns = bpf_ktime_get_ns(), .outcome = outcome };

	if (outcome != SIGNAL_ACCEPTED && !may_record_rejection(event.at_ns))
		return;
	event.epoch = bpf_ntohl(signal->epoch_be);
	event.flow = bpf_ntohs(signal->flow_be);
	event.code = signal->code;
	bpf_ringbuf_output(&signal_events, &event, sizeof(event), 0);
}

static __always_inline bool is_well_formed(const struct signal *signal, __u32 udp_bytes)
{
	return udp_bytes == sizeof(struct udphdr) + sizeof(*signal) && signal->version == SIGNAL_VERSION &&
	       signal->kind == SIGNAL_POLICY && signal->probe_shift <= PROBE_SHIFT_MAX;
}

/* Returns the tag of a signal; tag and arguments, the bytes before it, are in memory order. */
static __always_inline __u64 signal_tag(__u64 first, __u64 second, __u32 rest, const struct siphash_key *key)
{
	struct siphash_state state = siphash_start(key);

	_Static_assert(SHIM_TAGGED_BYTES == 20, "two words and a half");
	siphash_add(&state, first);
	siphash_add(&state, second);
	return siphash_end(state, rest | (__u64)SHIM_TAGGED_BYTES << 56);
}

static __always_inline bool is_sealed(const struct signal *signal, const struct siphash_key *key)
{
	const __u64 *words = WORDS(signal), *tag = WORDS(signal->tag);

	return *tag == signal_tag(words[0], words[1], signal->epoch_be, key);
}

static __always_inline bool is_recent(const struct signal *signal)
{
	__u32 zero = 0;
	__u64 *offset_ns = bpf_map_lookup_elem(&tai_offset_ns, &zero);
	__u64 now_us, age_us;

	if (!offset_ns)
		return false;
	now_us = (bpf_ktime_get_tai_ns() - *offset_ns) / 1000;
	age_us = now_us - bpf_be64_to_cpu(signal->sent_us_be); /* huge if sent in the future */
	return age_us + SIGNAL_WITHIN_US <= 2 * SIGNAL_WITHIN_US;
}

/* A code that enables replication needs a configured path. The ToS repeats the code, except for the
 * lower two bits, which the network may mark (ECN).
 */
static __always_inline bool is_possible(const struct signal *signal, __u8 tos)
{
	struct route route;

	if ((tos ^ signal->code) & ~ECN_MASK & 0xff)
		return false;
	if (signal->code == 0x00 || signal->code == 0xff)
		return true;
	return read_route(signal->code, &route) && route.inner_mtu_bytes;
}

/* Replaces an older policy with the signal's; returns whether it did. */
static __always_inline bool replace_policy(const struct signal *signal, __u32 flow)
{
	struct policy policy = {
		.code = signal->code,
		.probes = signal->probes,
		.probe_shift = signal->probe_shift,
		.epoch = bpf_ntohl(signal->epoch_be),
	};
	struct policy *row = bpf_map_lookup_elem(&policies, &flow);
	__u64 next = *(__u64 *)&policy;

	if (!row)
		return false;
	for (int attempt = 0; attempt < 4; attempt++) {
		__u64 found = *(volatile __u64 *)row;

		if (((struct policy *)&found)->epoch >= policy.epoch)
			return false;
		if (__sync_val_compare_and_swap((__u64 *)row, found, next) == found)
			return true;
	}
	return false; /* other writers won every attempt */
}

/* Applies a signal whose tag is valid; returns its outcome. */
static __always_inline enum signal_outcome apply_signal(const struct signal *signal, __u8 tos)
{
	__u32 index = bpf_ntohs(signal->flow_be);
	struct tx_flow *flow = bpf_map_lookup_elem(&tx_flows, &index);

	if (!flow || !flow->configured)
		return SIGNAL_FLOW;
	if (!is_recent(signal))
		return SIGNAL_AGE;
	if (!is_possible(signal, tos))
		return SIGNAL_CODE;
	return replace_policy(signal, index) ? SIGNAL_ACCEPTED : SIGNAL_EPOCH;
}

SEC("tcx/ingress")
int receive_signal(struct __sk_buff *skb)
{
	struct cursor cursor = read_skb(skb, sizeof(struct udphdr) + sizeof(struct signal));
	struct ethhdr *ethernet = take(&cursor, sizeof(*ethernet));
	struct signal_settings *settings;
	enum signal_outcome outcome;
	struct packet packet;
	struct signal *signal;
	__be16 *length_be;
	__u32 zero = 0;

	settings = bpf_map_lookup_elem(&signal_settings, &zero);
	if (!ethernet || !settings)
		return TC_ACT_UNSPEC;
	if (parse_ip(&cursor, ethernet->h_proto, skb->len - sizeof(*ethernet), &packet) != PARSED)
		return TC_ACT_UNSPEC;
	if (packet.protocol != IPPROTO_UDP || packet.destination_port != bpf_ntohs(settings->port_be))
		return TC_ACT_UNSPEC;
	if (!bpf_map_lookup_elem(&signal_addresses, packet.destination))
		return TC_ACT_UNSPEC;

	length_be = take(&cursor, 4); /* includes the checksum, which the tag makes redundant */
	signal = take(&cursor, sizeof(*signal));
	if (!length_be || !signal || !is_well_formed(signal, bpf_ntohs(*length_be)))
		return reject(SIGNAL_MALFORMED);
	if (!is_sealed(signal, &settings->key))
		return reject(SIGNAL_TAG);
	outcome = apply_signal(signal, packet.traffic_class);
	count_outcome(outcome);
	record(signal, outcome);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
