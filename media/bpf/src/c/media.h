/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The header of a packet of media and its hop tag, docs/design/media.md. */
#ifndef HAWSER_MEDIA_H
#define HAWSER_MEDIA_H

#include "parse.h"
#include "relay_abi.h"
#include "siphash.h"

/* Returns the tag of a header under a key, in memory order. */
static __always_inline __u64 media_tag(const struct media *media, const struct siphash_key *key)
{
	struct siphash_state state = siphash_start(key);
	const __u64 *words = WORDS(media);

	_Static_assert(MEDIA_TAGGED == 28, "three words and a half");
	siphash_add(&state, words[0]);
	siphash_add(&state, words[1]);
	siphash_add(&state, words[2]);
	return siphash_end(state, ((const __u32 *)words)[6] | (__u64)MEDIA_TAGGED << 56);
}

static __always_inline __u64 media_tag_of(const struct media *media)
{
	__u64 tag;

	__builtin_memcpy(&tag, media->tag, sizeof(tag));
	return tag;
}

/* Returns whether all fields are in their range. */
static __always_inline bool media_is_valid(const struct media *media)
{
	__u32 index = bpf_ntohs(media->index_be), count = bpf_ntohs(media->count_be);

	return media->version == MEDIA_VERSION && !(media->flags & ~MEDIA_FLAGS) && media->layer < MEDIA_LAYERS &&
	       index < (count ? count : 0xffff);
}

#endif
