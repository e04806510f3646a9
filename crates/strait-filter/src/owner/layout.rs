//! Memory that the programs share with the reader, and offsets in kernel structures.

use crate::offsets::offsets;

/// Offset of the number of changes of the owners by process, 64 bits.
pub const CHANGES: usize = 0;
/// Offset of the number of sockets and owners for which the kernel had no memory, 64 bits.
pub const FAILURES: usize = 8;
/// Size of the value with these numbers.
pub const STATE_BYTES: usize = 16;

offsets! {
    task_tgid: task_struct.tgid,
    task_group_leader: task_struct.group_leader,
    task_comm: task_struct.comm,
    task_cred: task_struct.cred,
    task_cgroups: task_struct.cgroups,
    task_self_exec_id: task_struct.self_exec_id,
    cred_euid: cred.euid,
    /// The task's cgroup of version 2.
    css_set_dfl_cgrp: css_set.dfl_cgrp,
    cgroup_kn: cgroup.kn,
    kernfs_node_id: kernfs_node.id,
    socket_sk: socket.sk,
    /// A `struct sock` starts with a `sock_common`.
    sock_family: sock_common.skc_family,
    sock_type: sock.sk_type,
    sk_buff_dev: sk_buff.dev,
    net_device_ip_ptr: net_device.ip_ptr,
    net_device_ip6_ptr: net_device.ip6_ptr,
    in_device_ifa_list: in_device.ifa_list,
    in_ifaddr_ifa_next: in_ifaddr.ifa_next,
    in_ifaddr_ifa_local: in_ifaddr.ifa_local,
    inet6_dev_addr_list: inet6_dev.addr_list,
    inet6_ifaddr_if_list: inet6_ifaddr.if_list,
    inet6_ifaddr_addr: inet6_ifaddr.addr,
}

pub(super) const PID: i16 = 0;
pub(super) const EXEC: i16 = 4;
pub(super) const UID: i16 = 8;
pub(super) const FLAGS: i16 = 12;
pub(super) const CGROUP: i16 = 16;
pub(super) const COMMAND: i16 = 24;

/// A process used the socket after the programs were attached.
pub(super) const USED: i32 = 1 << 0;
/// A process had the socket open when the programs were attached.
pub(super) const OPEN: i32 = 1 << 1;
/// Several processes use the socket, which carries datagrams.
pub(super) const SHARED: i32 = 1 << 2;

/// Process that uses a socket. Fields are in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Bytes 0 to 3: identifier of the process in the initial namespace of processes; 0 if several
    /// processes have the socket open and none has used it.
    pub pid: u32,
    /// Bytes 8 to 11: effective user.
    pub uid: u32,
    /// Bytes 16 to 23: identifier of the cgroup, which is the inode number of its directory.
    pub cgroup: u64,
    /// Bytes 24 to 39: name of the process, padded by NUL.
    pub command: [u8; Self::COMMAND_BYTES],
}

impl Owner {
    /// Size in memory.
    pub const BYTES: usize = 40;
    /// `TASK_COMM_LEN`: bytes of a name with its NUL.
    pub const COMMAND_BYTES: usize = 16;

    /// Returns the owner in `bytes`.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: i16| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at as usize..at as usize + 4]);
            u32::from_ne_bytes(word)
        };
        let mut cgroup = [0; 8];
        cgroup.copy_from_slice(&bytes[CGROUP as usize..COMMAND as usize]);
        let mut command = [0; Self::COMMAND_BYTES];
        command.copy_from_slice(&bytes[COMMAND as usize..]);
        Self { pid: word(PID), uid: word(UID), cgroup: u64::from_ne_bytes(cgroup), command }
    }
}
