//! Memory that the programs share with the reader, and offsets in kernel structures.

/// Offset of the number of changes of the owners by process, 64 bits.
pub const CHANGES: usize = 0;
/// Offset of the number of sockets and owners for which the kernel had no memory, 64 bits.
pub const FAILURES: usize = 8;
/// Size of the value with these numbers.
pub const STATE_BYTES: usize = 16;

/// Offsets in bytes in structures of the running kernel.
#[allow(missing_docs, reason = "the names are the kernel's")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    pub task_tgid: i16,
    pub task_group_leader: i16,
    pub task_comm: i16,
    pub task_cred: i16,
    pub task_cgroups: i16,
    pub task_self_exec_id: i16,
    pub cred_euid: i16,
    /// `css_set.dfl_cgrp`: the task's cgroup of version 2.
    pub css_set_dfl_cgrp: i16,
    pub cgroup_kn: i16,
    pub kernfs_node_id: i16,
    pub socket_sk: i16,
    /// `sock_common.skc_family`; a `struct sock` starts with a `sock_common`.
    pub sock_family: i16,
    pub sock_type: i16,
    pub sk_buff_dev: i16,
    pub net_device_ip_ptr: i16,
    pub net_device_ip6_ptr: i16,
    pub in_device_ifa_list: i16,
    pub in_ifaddr_ifa_next: i16,
    pub in_ifaddr_ifa_local: i16,
    pub inet6_dev_addr_list: i16,
    pub inet6_ifaddr_if_list: i16,
    pub inet6_ifaddr_addr: i16,
}

impl Offsets {
    /// Structure and member of each offset, in the order of [`Offsets::new`].
    pub const MEMBERS: [(&str, &str); 22] = [
        ("task_struct", "tgid"),
        ("task_struct", "group_leader"),
        ("task_struct", "comm"),
        ("task_struct", "cred"),
        ("task_struct", "cgroups"),
        ("task_struct", "self_exec_id"),
        ("cred", "euid"),
        ("css_set", "dfl_cgrp"),
        ("cgroup", "kn"),
        ("kernfs_node", "id"),
        ("socket", "sk"),
        ("sock_common", "skc_family"),
        ("sock", "sk_type"),
        ("sk_buff", "dev"),
        ("net_device", "ip_ptr"),
        ("net_device", "ip6_ptr"),
        ("in_device", "ifa_list"),
        ("in_ifaddr", "ifa_next"),
        ("in_ifaddr", "ifa_local"),
        ("inet6_dev", "addr_list"),
        ("inet6_ifaddr", "if_list"),
        ("inet6_ifaddr", "addr"),
    ];

    /// Takes the offsets of [`Offsets::MEMBERS`]; `None` if one is beyond the reach of an
    /// instruction.
    pub fn new(found: [u32; Self::MEMBERS.len()]) -> Option<Self> {
        let mut offsets = [0; Self::MEMBERS.len()];
        for (offset, found) in offsets.iter_mut().zip(found) {
            *offset = i16::try_from(found).ok()?;
        }
        let [
            task_tgid,
            task_group_leader,
            task_comm,
            task_cred,
            task_cgroups,
            task_self_exec_id,
            cred_euid,
            css_set_dfl_cgrp,
            cgroup_kn,
            kernfs_node_id,
            socket_sk,
            sock_family,
            sock_type,
            sk_buff_dev,
            net_device_ip_ptr,
            net_device_ip6_ptr,
            in_device_ifa_list,
            in_ifaddr_ifa_next,
            in_ifaddr_ifa_local,
            inet6_dev_addr_list,
            inet6_ifaddr_if_list,
            inet6_ifaddr_addr,
        ] = offsets;
        Some(Self {
            task_tgid,
            task_group_leader,
            task_comm,
            task_cred,
            task_cgroups,
            task_self_exec_id,
            cred_euid,
            css_set_dfl_cgrp,
            cgroup_kn,
            kernfs_node_id,
            socket_sk,
            sock_family,
            sock_type,
            sk_buff_dev,
            net_device_ip_ptr,
            net_device_ip6_ptr,
            in_device_ifa_list,
            in_ifaddr_ifa_next,
            in_ifaddr_ifa_local,
            inet6_dev_addr_list,
            inet6_ifaddr_if_list,
            inet6_ifaddr_addr,
        })
    }
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
