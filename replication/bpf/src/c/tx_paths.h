/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The paths by which this node sends. All objects that have this table share it. */
#ifndef HAWSER_TX_PATHS_H
#define HAWSER_TX_PATHS_H

#include "abi.h"

#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct tx_path);
	__uint(max_entries, MAX_PATHS);
} tx_paths SEC(".maps");

#endif
