/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The tag of a replica, see docs/design/wire.md: SipHash-2-4 over the inner packet's headers, the
 * digest of the whole packet if the flow requires it, and the shim. The shim's first word, which
 * names the path, comes last: the rest is the same in all copies, and the sender hashes it once.
 */
#ifndef HAWSER_SEAL_H
#define HAWSER_SEAL_H

#include "abi.h"
#include "parse.h"
#include "siphash.h"

/* The covered headers: without options, and the four bytes after them, in which TCP and UDP have
 * their ports unless there are IPv4 options or IPv6 extension headers. No checksum of a transport
 * protocol is covered: a sender may leave its completion to the device.
 */
#define SEALED_V4 (sizeof(struct iphdr) + 4)
#define SEALED_V6 (sizeof(struct ipv6hdr) + 4) /* followed by four zero bytes */
_Static_assert(SEALED_V4 == 24 && SEALED_V6 == 44, "three words; five and a half");

#define SEALED_SHIM 16 /* bytes 4 to 19 */
#define SEALED_LAST 4  /* bytes 0 to 3 */

/* The hash of what a tag covers, in progress. */
struct sealing {
	struct siphash_state state;
	__u32 bytes;
};

/* Returns the four bytes at `at`; zero if the packet, with `bytes` left, ends before. */
static __always_inline __u32 ports_at(const void *at, const void *end, __s32 bytes)
{
	return bytes >= 4 && at + 4 <= end ? *(const __u32 *)WORDS(at) : 0;
}

/* Hashes the headers of the packet of `bytes` at `ip`; false if they extend beyond `end`. */
static __always_inline bool seal_headers(struct sealing *sealing, const struct siphash_key *key, const void *ip,
					 const void *end, __s32 bytes)
{
	const __u64 *words = WORDS(ip);

	sealing->state = siphash_start(key);
	if (ip + sizeof(struct iphdr) > end)
		return false;
	siphash_add(&sealing->state, words[0]);
	siphash_add(&sealing->state, words[1]);
	if (*(const __u8 *)ip >> 4 == 4) {
		siphash_add(&sealing->state,
			    *(const __u32 *)(words + 2) |
				    (__u64)ports_at(ip + sizeof(struct iphdr), end, bytes - (__s32)sizeof(struct iphdr)) << 32);
		sealing->bytes = SEALED_V4;
		return true;
	}
	if (ip + sizeof(struct ipv6hdr) > end)
		return false;
	siphash_add(&sealing->state, words[2]);
	siphash_add(&sealing->state, words[3]);
	siphash_add(&sealing->state, words[4]);
	siphash_add(&sealing->state, ports_at(ip + sizeof(struct ipv6hdr), end, bytes - (__s32)sizeof(struct ipv6hdr)));
	sealing->bytes = SEALED_V6 + 4;
	return true;
}

static __always_inline void seal_digest(struct sealing *sealing, __u64 digest)
{
	siphash_add(&sealing->state, digest);
	sealing->bytes += sizeof(digest);
}

/* Hashes the part of the shim that is the same in all copies. */
static __always_inline void seal_shim(struct sealing *sealing, const struct shim *shim)
{
	const __u64 *words = WORDS((const void *)shim + SEALED_LAST);

	siphash_add(&sealing->state, words[0]);
	siphash_add(&sealing->state, words[1]);
	sealing->bytes += SEALED_SHIM + SEALED_LAST;
}

/* Returns the tag in memory order. */
static __always_inline __u64 seal_copy(const struct sealing *sealing, __u32 first_word)
{
	return siphash_end(sealing->state, first_word | (__u64)sealing->bytes << 56);
}

#endif
