/*
 * A QEMU plugin that counts the guest's instructions, separately for kernel and programs, and
 * writes both counts to QEMU's log whenever a program executes a mark.
 *
 * A mark is an instruction without effect that compilers do not emit: nopl ID(%rax) with 0x5354 in
 * ID's upper half. The log line is "mark LOW kernel KERNEL user USER taken TAKEN cipher CIPHER";
 * LOW is ID's lower half. A program that polls executes mark 3 before each poll, and mark 4 after a
 * poll that found something; they are not logged. TAKEN is the count of the program's instructions
 * between them. CIPHER, with the argument "calls=own", is the count of the instructions in blocks
 * that have an instruction for AES or GCM: a block ends at a jump, so they are those of the loops
 * that encrypt.
 *
 * With the argument "calls" each instruction calls a function that counts it, as QEMU 10.0 crashes
 * when the second processor of a guest starts with counts in the translated code. It runs all
 * processors in one thread (-icount).
 *
 * With the argument "calls=own" a mark logs only the counts of the processor that executes it. QEMU
 * names the processor that translated an instruction, and not the one that executes it, if all run
 * in one thread. So the plugin tells processors apart by the address of Linux's per-processor data,
 * which is the base of GS in the kernel, and the base that SWAPGS would take in programs.
 *
 * The lab compiles this file to meter a guest (lab/src/vm/meter.rs). The declarations are the
 * needed part of QEMU's plugin interface, version 4 (docs/devel/tcg-plugins.rst).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
enum registers { NO_REGISTERS, READ_REGISTERS };

/* Arrays of glib, which QEMU is linked to. */
struct array {
	char *data;
	unsigned int len;
};

struct description {
	struct handle *handle;
	const char *name, *feature;
};

struct array *g_byte_array_new(void);
struct array *g_byte_array_set_size(struct array *, unsigned int);
void qemu_plugin_register_vcpu_init_cb(uint64_t plugin, void (*started)(uint64_t plugin, unsigned int cpu));
struct array *qemu_plugin_get_registers(void);
int qemu_plugin_read_register(struct handle *, struct array *);
void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*executed)(unsigned int cpu, void *), enum registers,
					  void *);
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
static bool by_calls, by_processor;

#define PROCESSORS_MAX 8

/* Counts of calls, by processor with "calls=own", otherwise those of the first entry only. */
static struct {
	uint64_t base, kernel, user, cipher;
} processors[PROCESSORS_MAX], *current = processors;

static struct handle *gs_base, *other_gs_base;
static struct array *base_bytes;
static uint64_t poll_began, taken;

static uint64_t kernel(void)
{
	return by_calls ? current->kernel : qemu_plugin_u64_sum(kernel_count);
}

static uint64_t user(void)
{
	return by_calls ? current->user : qemu_plugin_u64_sum(user_count);
}

static void called_in_kernel(unsigned int cpu, void *encrypts)
{
	(void)cpu;
	current->kernel++;
	current->cipher += encrypts != NULL;
}

static void called_in_program(unsigned int cpu, void *encrypts)
{
	(void)cpu;
	current->user++;
	current->cipher += encrypts != NULL;
}

static void find_registers(uint64_t plugin, unsigned int cpu)
{
	struct array *all = qemu_plugin_get_registers();
	struct description *descriptions = (struct description *)all->data;

	(void)plugin, (void)cpu;
	for (unsigned int i = 0; i < all->len; i++) {
		if (strcmp(descriptions[i].name, "gs_base") == 0)
			gs_base = descriptions[i].handle;
		if (strcmp(descriptions[i].name, "k_gs_base") == 0)
			other_gs_base = descriptions[i].handle;
	}
}

/* Finds the processor that executes a block; the last one if this one's data has no address yet. */
static void find_processor(unsigned int cpu, void *in_kernel)
{
	uint64_t base;

	(void)cpu;
	g_byte_array_set_size(base_bytes, 0);
	if (qemu_plugin_read_register(in_kernel ? gs_base : other_gs_base, base_bytes) != sizeof(base))
		return;
	memcpy(&base, base_bytes->data, sizeof(base));
	/* The first instructions of the kernel have the program's base. */
	if (!(base >> 63))
		return;
	for (size_t i = 0; i < PROCESSORS_MAX; i++) {
		if (processors[i].base == 0)
			processors[i].base = base;
		if (processors[i].base == base) {
			current = &processors[i];
			return;
		}
	}
}

static void log_mark(unsigned int low)
{
	char line[128];

	snprintf(line, sizeof(line), "mark %u kernel %llu user %llu taken %llu cipher %llu\n", low,
		 (unsigned long long)kernel(), (unsigned long long)user(), (unsigned long long)taken,
		 (unsigned long long)current->cipher);
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

/* Returns true for instructions of the extensions AES and PCLMULQDQ, also in the form of AVX. */
static bool is_of_cipher(const struct instruction *instruction)
{
	unsigned char bytes[16], opcode, map;
	size_t count = qemu_plugin_insn_data(instruction, bytes, sizeof(bytes));

	if (count < 5)
		return false;
	if (bytes[0] == 0xc4) {
		map = bytes[1] & 0x1f;
		opcode = bytes[3];
	} else {
		/* 66, REX or nothing, 0f, 38 or 3a, opcode. */
		size_t at = (bytes[1] & 0xf0) == 0x40 ? 2 : 1;

		if (bytes[0] != 0x66 || bytes[at] != 0x0f || count < at + 3)
			return false;
		map = bytes[at + 1] == 0x38 ? 2 : bytes[at + 1] == 0x3a ? 3 : 0;
		opcode = bytes[at + 2];
	}
	return (map == 2 && opcode >= 0xdb && opcode <= 0xdf) || (map == 3 && opcode == 0x44);
}

static bool encrypts(const struct block *block)
{
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++)
		if (is_of_cipher(qemu_plugin_tb_get_insn(block, i)))
			return true;
	return false;
}

static void translated(uint64_t plugin, struct block *block)
{
	size_t count = qemu_plugin_tb_n_insns(block);
	uint64_t start = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(block, 0));
	void *cipher = (void *)(uintptr_t)(by_processor && encrypts(block));

	(void)plugin;
	if (by_processor)
		qemu_plugin_register_vcpu_tb_exec_cb(block, find_processor, READ_REGISTERS, (void *)(start >> 63));
	for (size_t i = 0; i < count; i++) {
		struct instruction *instruction = qemu_plugin_tb_get_insn(block, i);
		/* The kernel has the upper half of the addresses. */
		bool in_kernel = qemu_plugin_insn_vaddr(instruction) >> 63;
		uintptr_t low;

		if (by_calls)
			qemu_plugin_register_vcpu_insn_exec_cb(instruction,
							       in_kernel ? called_in_kernel : called_in_program,
							       NO_REGISTERS, cipher);
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
	by_processor = by_calls && strcmp(argv[0], "calls=own") == 0;
	base_bytes = g_byte_array_new();
	kernel_count = (counter){ .score = qemu_plugin_scoreboard_new(sizeof(uint64_t)) };
	user_count = (counter){ .score = qemu_plugin_scoreboard_new(sizeof(uint64_t)) };
	if (by_processor)
		qemu_plugin_register_vcpu_init_cb(plugin, find_registers);
	qemu_plugin_register_vcpu_tb_trans_cb(plugin, translated);
	return 0;
}
