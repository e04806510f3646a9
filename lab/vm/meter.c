/*
 * A QEMU plugin that counts the guest's instructions, separately for kernel and programs, and
 * writes both counts to QEMU's log whenever a program executes a mark.
 *
 * A mark is an instruction without effect that compilers do not emit: nopl ID(%rax) with 0x5354 in
 * ID's upper half. The log line is "mark LOW kernel KERNEL user USER taken TAKEN"; LOW is ID's
 * lower half. A program that polls executes mark 3 before each poll, and mark 4 after a poll that
 * found something; they are not logged. TAKEN is the count of the program's instructions between
 * them.
 *
 * With the argument "calls=all" each instruction calls a function that counts it, as QEMU 10.0
 * crashes when the second processor of a guest starts with counts in the translated code. It runs
 * all processors in one thread (-icount). With "calls=N" only instructions of processor N count.
 *
 * The lab compiles this file to meter a guest (lab/src/vm/meter.rs). The declarations are the
 * needed part of QEMU's plugin interface, version 4 (docs/devel/tcg-plugins.rst).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct info;
struct block;
struct instruction;
struct scoreboard;

typedef struct {
	struct scoreboard *score;
	size_t offset;
} counter;

enum operation { ADD_U64 };
enum registers { NO_REGISTERS };

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t plugin, void (*translated)(uint64_t plugin, struct block *));
size_t qemu_plugin_tb_n_insns(const struct block *);
struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t index);
size_t qemu_plugin_insn_data(const struct instruction *, void *bytes, size_t len);
uint64_t qemu_plugin_insn_vaddr(const struct instruction *);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct instruction *, enum operation, counter, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct instruction *, void (*executed)(unsigned int cpu, void *),
					    enum registers, void *);
struct scoreboard *qemu_plugin_scoreboard_new(size_t bytes);
uint64_t qemu_plugin_u64_sum(counter);
void qemu_plugin_outs(const char *);

int qemu_plugin_version = 4;

#define MARK_BYTES 7
#define MARK_HIGH 0x5354

#define MARK_POLL 3
#define MARK_TAKEN 4

static counter kernel_count, user_count;
static bool by_calls, counts_one;
static unsigned int counted;
static uint64_t kernel_calls, user_calls;
static uint64_t poll_began, taken;

static uint64_t kernel(void)
{
	return by_calls ? kernel_calls : qemu_plugin_u64_sum(kernel_count);
}

static uint64_t user(void)
{
	return by_calls ? user_calls : qemu_plugin_u64_sum(user_count);
}

static void called(unsigned int cpu, void *calls)
{
	if (!counts_one || cpu == counted)
		++*(uint64_t *)calls;
}

static void log_mark(unsigned int low)
{
	char line[128];

	snprintf(line, sizeof(line), "mark %u kernel %llu user %llu taken %llu\n", low,
		 (unsigned long long)kernel(), (unsigned long long)user(), (unsigned long long)taken);
	qemu_plugin_outs(line);
}

static void marked(unsigned int cpu, void *low)
{
	(void)cpu;
	switch ((uintptr_t)low) {
	case MARK_POLL: poll_began = user(); break;
	case MARK_TAKEN: taken += user() - poll_began; break;
	default: log_mark((uintptr_t)low);
	}
}

/* Returns true for a mark, with the lower half of its ID in `low`. */
static bool is_mark(const struct instruction *instruction, uintptr_t *low)
{
	unsigned char bytes[MARK_BYTES];

	if (qemu_plugin_insn_data(instruction, bytes, sizeof(bytes)) != sizeof(bytes))
		return false;
	if (bytes[0] != 0x0f || bytes[1] != 0x1f || bytes[2] != 0x80)
		return false;
	*low = bytes[3] | bytes[4] << 8;
	return (bytes[5] | bytes[6] << 8) == MARK_HIGH;
}

static void translated(uint64_t plugin, struct block *block)
{
	size_t count = qemu_plugin_tb_n_insns(block);

	(void)plugin;
	for (size_t i = 0; i < count; i++) {
		struct instruction *instruction = qemu_plugin_tb_get_insn(block, i);
		/* The kernel has the upper half of the addresses. */
		bool in_kernel = qemu_plugin_insn_vaddr(instruction) >> 63;
		uintptr_t low;

		if (by_calls)
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, called, NO_REGISTERS,
							       in_kernel ? &kernel_calls : &user_calls);
		else
			qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
				instruction, ADD_U64, in_kernel ? kernel_count : user_count, 1);
		if (is_mark(instruction, &low))
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, marked, NO_REGISTERS, (void *)low);
	}
}

int qemu_plugin_install(uint64_t plugin, const struct info *info, int argc, char **argv)
{
	(void)info;
	by_calls = argc > 0;
	counts_one = by_calls && strcmp(argv[0], "calls=all") != 0;
	if (counts_one)
		counted = strtoul(argv[0] + strlen("calls="), NULL, 10);
	kernel_count = (counter){ .score = qemu_plugin_scoreboard_new(sizeof(uint64_t)) };
	user_count = (counter){ .score = qemu_plugin_scoreboard_new(sizeof(uint64_t)) };
	qemu_plugin_register_vcpu_tb_trans_cb(plugin, translated);
	return 0;
}
