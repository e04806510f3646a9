//! Programs that write the owner of a socket.
//!
//! Registers: R7 = the socket, then its storage; R8 = the task; R9 = the socket's type.

use super::Maps;
use super::layout::{
    CGROUP, CHANGES, COMMAND, EXEC, FAILURES, FLAGS, OPEN, Offsets, Owner, PID, SHARED, UID, USED,
};
use crate::ebpf::{
    Assembler, Condition, Instruction, Label, Operation,
    Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
    Size, opcode as op,
};
use crate::error::Error;

/// Event by which a process uses a socket. All of them happen in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Tracepoint `inet_sock_set_state`: a TCP socket connects or listens.
    State,
    /// A tracepoint with the socket as its first argument.
    Transfer,
    /// Hook of a cgroup: a process has made a socket.
    Create,
    /// Hook of a cgroup: a process connects a socket, or sends a datagram by one that is not
    /// connected.
    Address,
}

impl Use {
    /// The tracepoints, and true if the kernel must have them.
    ///
    /// `tcp_sendmsg_locked` is new in Linux 6.16. Without it the first data that a process sends by
    /// a connection that another process has opened is attributed to that one.
    pub const TRACEPOINTS: [(&str, Self, bool); 4] = [
        ("inet_sock_set_state", Self::State, true),
        ("sock_send_length", Self::Transfer, true),
        ("sock_recv_length", Self::Transfer, true),
        ("tcp_sendmsg_locked", Self::Transfer, false),
    ];

    /// Returns the program's result: hooks of cgroups allow the call with 1.
    fn result(self) -> i32 {
        match self {
            Self::State | Self::Transfer => 0,
            Self::Create | Self::Address => 1,
        }
    }
}

/// States of a TCP socket that a process brings about (`include/net/tcp_states.h`).
const TCP_SYN_SENT: i32 = 2;
const TCP_LISTEN: i32 = 10;

/// Name of the function of the iterator over open files, and offsets of its arguments.
pub const FILES_FUNCTION: &str = "bpf_iter_task_file";
const FILES_TASK: i16 = 8;
const FILES_FILE: i16 = 24;

/// The owner. Its first field is the key of the owners by process.
const STACK_OWNER: i16 = -(Owner::BYTES as i16);
const WORDS: std::ops::Range<i16> = 0..(Owner::BYTES / 8) as i16;

/// Returns the program for an event: the running process owns the socket from now on.
///
/// # Errors
/// Those of the assembler.
pub fn use_program(of: Use, maps: &Maps, offsets: &Offsets) -> Result<Vec<Instruction>, Error> {
    let mut asm = Assembler::new();
    let (end, failed, other) = (asm.label(), asm.label(), asm.label());
    take_socket(&mut asm, of, offsets, end);
    asm.call(op::GET_CURRENT_TASK_BTF);
    asm.mov(R8, R0);
    open_storage(&mut asm, maps, failed);
    // Almost always the same process uses the socket again. But it may have changed its user, its
    // name or its cgroup, none of which leaves a number that could be compared instead.
    describe(&mut asm, offsets);
    for word in WORDS {
        // The stack has no flags.
        let size = if 8 * word == UID { Size::W } else { Size::Dw };
        asm.load(size, R1, R10, STACK_OWNER + 8 * word);
        asm.load(size, R2, R7, 8 * word);
        asm.jump_if(Condition::NotEqual, R1, R2, other);
    }
    asm.jump(end);
    asm.bind(other);
    mark(&mut asm);
    write(&mut asm, maps, failed, end);
    finish(&mut asm, maps, of.result(), failed, end);
    asm.finish()
}

/// R7 = the socket, R9 = its type.
fn take_socket(asm: &mut Assembler, of: Use, offsets: &Offsets, end: Label) {
    match of {
        Use::State => {
            let used = asm.label();
            asm.load(Size::Dw, R7, R1, 0);
            asm.load(Size::W, R2, R1, 16);
            asm.jump_if(Condition::Equal, R2, TCP_SYN_SENT, used);
            asm.jump_if(Condition::NotEqual, R2, TCP_LISTEN, end);
            asm.bind(used);
            asm.mov(R9, op::SOCK_STREAM);
        }
        Use::Transfer => {
            asm.load(Size::Dw, R7, R1, 0);
            only_internet(asm, offsets, end);
            asm.load(Size::H, R9, R7, offsets.sock_type);
        }
        Use::Create => {
            asm.mov(R7, R1);
            asm.load(Size::W, R9, R1, op::SOCK_TYPE);
        }
        Use::Address => {
            asm.load(Size::W, R9, R1, op::SOCK_ADDR_TYPE);
            asm.load(Size::Dw, R7, R1, op::SOCK_ADDR_SK);
            asm.jump_if(Condition::Equal, R7, 0, end);
        }
    }
}

/// Ends the program if the socket in R7 is of another address family.
fn only_internet(asm: &mut Assembler, offsets: &Offsets, end: Label) {
    let internet = asm.label();
    asm.load(Size::H, R1, R7, offsets.sock_family);
    asm.jump_if(Condition::Equal, R1, op::AF_INET, internet);
    asm.jump_if(Condition::NotEqual, R1, op::AF_INET6, end);
    asm.bind(internet);
}

/// Sets the flags of the storage for the process on the stack, which differs from the last one.
fn mark(asm: &mut Assembler) {
    let (marked, same) = (asm.label(), asm.label());
    asm.load(Size::W, R1, R7, FLAGS);
    asm.alu(Operation::Or, R1, USED);
    // The kernel may send the data of a stream later. The program that sends a datagram runs on the
    // processor that sends it, so the processes that share a socket can be told apart.
    asm.jump_if(Condition::Equal, R9, op::SOCK_STREAM, marked);
    asm.load(Size::W, R2, R7, PID);
    asm.jump_if(Condition::Equal, R2, 0, same);
    asm.load(Size::W, R3, R10, STACK_OWNER + PID);
    asm.jump_if(Condition::Equal, R2, R3, same);
    asm.alu(Operation::Or, R1, SHARED);
    asm.bind(same);
    asm.bind(marked);
    asm.store(Size::W, R7, FLAGS, R1);
}

/// Returns the program for the iterator over open files: a process that has a socket open owns it,
/// unless a process used it meanwhile. A socket that several processes have open has no owner.
///
/// # Errors
/// Those of the assembler.
pub fn files_program(maps: &Maps, offsets: &Offsets) -> Result<Vec<Instruction>, Error> {
    let mut asm = Assembler::new();
    let (end, failed, first) = (asm.label(), asm.label(), asm.label());
    asm.mov(R6, R1);
    asm.load(Size::Dw, R8, R6, FILES_TASK);
    asm.jump_if(Condition::Equal, R8, 0, end);
    asm.load(Size::Dw, R1, R6, FILES_FILE);
    asm.jump_if(Condition::Equal, R1, 0, end);
    asm.call(op::SOCK_FROM_FILE);
    asm.jump_if(Condition::Equal, R0, 0, end);
    asm.load(Size::Dw, R7, R0, offsets.socket_sk);
    asm.jump_if(Condition::Equal, R7, 0, end);
    only_internet(&mut asm, offsets, end);
    asm.load(Size::H, R9, R7, offsets.sock_type);
    open_storage(&mut asm, maps, failed);
    asm.load(Size::W, R1, R7, FLAGS);
    asm.jump_if(Condition::Equal, R1, 0, first);
    asm.jump_if(Condition::AnyBitSet, R1, USED, end);
    asm.load(Size::W, R1, R8, offsets.task_tgid);
    asm.load(Size::W, R2, R7, PID);
    asm.jump_if(Condition::Equal, R1, R2, end);
    asm.store(Size::W, R7, PID, 0);
    // Datagrams that one of them sends are attributed only if it is running.
    asm.jump_if(Condition::Equal, R9, op::SOCK_STREAM, end);
    asm.store(Size::W, R7, FLAGS, OPEN | SHARED);
    asm.jump(end);
    asm.bind(first);
    describe(&mut asm, offsets);
    asm.store(Size::W, R7, FLAGS, OPEN);
    write(&mut asm, maps, failed, end);
    finish(&mut asm, maps, 0, failed, end);
    asm.finish()
}

/// R7 = the storage of the socket in R7, made if there was none.
fn open_storage(asm: &mut Assembler, maps: &Maps, failed: Label) {
    asm.load_map(R1, maps.storage_fd);
    asm.mov(R2, R7);
    asm.mov(R3, 0);
    asm.mov(R4, op::SK_STORAGE_CREATE);
    asm.call(op::SK_STORAGE_GET);
    asm.jump_if(Condition::Equal, R0, 0, failed);
    asm.mov(R7, R0);
}

/// Writes the owner to the stack from the task in R8, with flags 0.
fn describe(asm: &mut Assembler, offsets: &Offsets) {
    asm.load(Size::W, R1, R8, offsets.task_tgid);
    asm.store(Size::W, R10, STACK_OWNER + PID, R1);
    asm.load(Size::W, R1, R8, offsets.task_self_exec_id);
    asm.store(Size::W, R10, STACK_OWNER + EXEC, R1);
    asm.store(Size::W, R10, STACK_OWNER + FLAGS, 0);
    asm.load(Size::Dw, R1, R8, offsets.task_cred);
    asm.load(Size::W, R1, R1, offsets.cred_euid);
    asm.store(Size::W, R10, STACK_OWNER + UID, R1);
    asm.load(Size::Dw, R1, R8, offsets.task_cgroups);
    asm.load(Size::Dw, R1, R1, offsets.css_set_dfl_cgrp);
    asm.load(Size::Dw, R1, R1, offsets.cgroup_kn);
    asm.load(Size::Dw, R1, R1, offsets.kernfs_node_id);
    asm.store(Size::Dw, R10, STACK_OWNER + CGROUP, R1);
    // The name of the process, not of its thread. Loads cost less than a helper that copies.
    asm.load(Size::Dw, R3, R8, offsets.task_group_leader);
    for at in (0..Owner::COMMAND_BYTES as i16).step_by(8) {
        asm.load(Size::Dw, R1, R3, offsets.task_comm + at);
        asm.store(Size::Dw, R10, STACK_OWNER + COMMAND + at, R1);
    }
}

/// Copies the owner from the stack to the storage, and to the owners by process if it is not there.
fn write(asm: &mut Assembler, maps: &Maps, failed: Label, end: Label) {
    let differs = asm.label();
    // The process identifier last, because a packet is attributed by it.
    for word in WORDS.rev() {
        asm.load(Size::Dw, R1, R10, STACK_OWNER + 8 * word);
        // The flags of the storage stay.
        match 8 * word {
            UID => asm.store(Size::W, R7, UID, R1),
            at => asm.store(Size::Dw, R7, at, R1),
        }
    }
    asm.load_map(R1, maps.owners_fd);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(STACK_OWNER + PID));
    asm.call(op::MAP_LOOKUP_ELEM);
    asm.jump_if(Condition::Equal, R0, 0, differs);
    for word in WORDS {
        asm.load(Size::Dw, R1, R10, STACK_OWNER + 8 * word);
        asm.load(Size::Dw, R2, R0, 8 * word);
        asm.jump_if(Condition::NotEqual, R1, R2, differs);
    }
    asm.jump(end);
    asm.bind(differs);
    asm.load_map(R1, maps.owners_fd);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(STACK_OWNER + PID));
    asm.mov(R3, R10);
    asm.alu(Operation::Add, R3, i32::from(STACK_OWNER));
    asm.mov(R4, 0);
    asm.call(op::MAP_UPDATE_ELEM);
    asm.jump_if(Condition::NotEqual, R0, 0, failed);
    count(asm, maps, CHANGES);
    asm.jump(end);
}

/// Counts a failure at `failed`, and returns `result` at `end`.
fn finish(asm: &mut Assembler, maps: &Maps, result: i32, failed: Label, end: Label) {
    asm.bind(failed);
    count(asm, maps, FAILURES);
    asm.bind(end);
    asm.mov(R0, result);
    asm.exit();
}

/// Adds one to a number of the state.
fn count(asm: &mut Assembler, maps: &Maps, at: usize) {
    asm.load_map_value(R1, maps.state_fd);
    asm.mov(R2, 1);
    asm.atomic_add(R1, at as i16, R2);
}
