/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Counts the system calls of threads and processes, by number. */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

#define SYSCALLS 512

/* Key: a thread, or a process with all its threads. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u8);
	__uint(max_entries, 64);
} counted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, SYSCALLS);
} syscalls SEC(".maps");

/* Arguments: registers, number. */
SEC("tp_btf/sys_enter")
int count_syscall(__u64 *arguments)
{
	__u64 current = bpf_get_current_pid_tgid();
	__u32 thread = current, process = current >> 32, number = arguments[1];
	__u64 *count;

	if (!bpf_map_lookup_elem(&counted, &thread) && !bpf_map_lookup_elem(&counted, &process))
		return 0;
	count = bpf_map_lookup_elem(&syscalls, &number);
	if (count)
		(*count)++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
