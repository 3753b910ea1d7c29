/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Deduplication of transparent replicas, which carry no sequence number: they are identified by a
 * fingerprint of the packet.
 */
#ifndef HAWSER_TRANSPARENT_H
#define HAWSER_TRANSPARENT_H

#include "abi.h"
#include "parse.h"
#include "siphash.h"

/* Bytes after the IPv4 header that the fingerprint covers: ports, checksum and the first bytes of
 * the payload.
 */
#define FINGERPRINT_BYTES 40

/* Hashes the fields that no hop changes, with the construction of SipHash-2-4. Copies of one packet
 * agree in all of them, but not in the padding after it: `bytes` is the length of the packet after
 * the header.
 */
static __always_inline __u64 fingerprint(const struct siphash_key *key, const struct iphdr *ip, void *end,
					 __u32 bytes)
{
	__u64 v0, v1, v2, v3;
	__u64 word = (__u64)ip->saddr << 32 | ip->daddr;
	void *at = (void *)(ip + 1);

	SIPHASH_START(v0, v1, v2, v3, key->k0, key->k1);
	SIPHASH_BLOCK(v0, v1, v2, v3, word);
	word = (__u64)ip->id << 32 | (__u64)ip->tot_len << 16 | ip->protocol;
	SIPHASH_BLOCK(v0, v1, v2, v3, word);
	for (int i = 0; i < FINGERPRINT_BYTES / 8 && bytes >= 8 && at + 8 <= end; i++, at += 8, bytes -= 8) {
		word = *(__u64 *)at;
		SIPHASH_BLOCK(v0, v1, v2, v3, word);
	}
	word = 0;
	for (int i = 0; i < 7 && bytes && at + 1 <= end; i++, at++, bytes--)
		word = word << 8 | *(__u8 *)at;
	SIPHASH_BLOCK(v0, v1, v2, v3, word);
	SIPHASH_FINISH(v0, v1, v2, v3);
	return v0 ^ v1 ^ v2 ^ v3;
}

/* A slot: {fingerprint: 32, milliseconds: 24, mask of paths: 8}, from the high end. */
#define SEEN_FINGERPRINT(seen) ((__u32)((seen) >> 32))
#define SEEN_MS(seen) ((__u32)(seen) >> 8)
#define SEEN_MS_MASK 0xffffffu

/* Slots per fingerprint: this many packets whose fingerprints map to the same set are remembered at
 * once.
 */
#define SEEN_WAYS 4
#define SEEN_ATTEMPTS 4

/* Drops a packet only if the same packet arrived before on another path, within `within_ms`: a
 * second copy on the same path is a new packet with the same content. If two processors race too
 * often, a duplicate passes; no new packet is dropped.
 */
static __always_inline enum verdict observe_fingerprint(struct seen *table, __u64 hash, __u32 path, __u64 now_ns,
							__u32 within_ms)
{
	__u64 *set = &table->slots[hash & (SEEN_SLOTS - SEEN_WAYS)];
	__u32 now_ms = now_ns / 1000000 & SEEN_MS_MASK;
	__u64 bit = 1 << (path & (MAX_PATHS - 1));

	for (int attempt = 0; attempt < SEEN_ATTEMPTS; attempt++) {
		__u64 found = 0, next = hash >> 32 << 32 | now_ms << 8 | bit;
		enum verdict verdict = VERDICT_FIRST;
		__u32 oldest_ms = 0;
		__u64 *slot = set;

		for (int way = 0; way < SEEN_WAYS; way++) {
			__u64 seen = *(volatile __u64 *)&set[way];
			__u32 age_ms = (now_ms - SEEN_MS(seen)) & SEEN_MS_MASK;
			bool same = SEEN_FINGERPRINT(seen) == (__u32)(hash >> 32) && age_ms < within_ms;

			if (same || !way || age_ms > oldest_ms) {
				slot = &set[way];
				found = seen;
				oldest_ms = age_ms;
			}
			if (same && !(seen & bit)) {
				verdict = VERDICT_DUPLICATE;
				next = seen | bit;
			}
			if (same)
				break;
		}
		if (__sync_val_compare_and_swap(slot, found, next) == found)
			return verdict;
	}
	return VERDICT_CONTENDED;
}

#endif
