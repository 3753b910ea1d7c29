/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The record of an ICMP error about a copy, shared with user space. */
#ifndef HAWSER_PATH_ERRORS_H
#define HAWSER_PATH_ERRORS_H

#include "abi.h"

struct path_error {
	__u32 path;
	__u32 mtu_bytes; /* of the next hop; 0 if the router does not tell */
	__u8 has_shim;	 /* the error quotes the shim */
	__u8 reserved[3];
	__u8 quoted[sizeof(struct shim)];
};
_Static_assert(sizeof(struct path_error) == 40, "path_error");

#endif
