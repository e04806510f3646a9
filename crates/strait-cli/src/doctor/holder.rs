//! Finds the process that holds an XDP program by a bpf_link. ip(8) cannot detach such a program.
//!
//! `xdp.rs` calls it. It reads /proc/PID/fdinfo (proc_pid_fdinfo(5), `bpf_link_show_fdinfo` in
//! kernel/bpf/syscall.c), which root can read of all processes and other users of their own
//! processes.

use std::fs;
use std::path::Path;

/// Maximum number of examined descriptors.
const DESCRIPTORS_MAX: usize = 1 << 18;

/// Returns number and name of the process with an XDP link on program `program_id`. `proc` is /proc
/// except in tests.
pub(super) fn of_xdp_link(proc: &Path, program_id: u32) -> Option<String> {
    let processes =
        fs::read_dir(proc).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let processes = processes.filter(|name| name.parse::<u32>().is_ok());
    let descriptors = processes.flat_map(|process| {
        let descriptors = fs::read_dir(proc.join(&process).join("fdinfo")).into_iter().flatten().flatten();
        descriptors.map(move |descriptor| (process.clone(), descriptor.path()))
    });
    let is_link = |text: &str| {
        field(text, "link_type") == Some("xdp") && field(text, "prog_id") == Some(&*program_id.to_string())
    };
    let mut descriptors = descriptors.take(DESCRIPTORS_MAX);
    let (process, _) =
        descriptors.find(|(_, path)| fs::read_to_string(path).is_ok_and(|text| is_link(&text)))?;
    let name = fs::read_to_string(proc.join(&process).join("comm")).unwrap_or_default();
    Some(format!("{process} ({})", name.trim()))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_a_link_on_the_program_is_named() {
        let proc = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = proc.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("17/fdinfo/3", "pos:\t0\nprog_id:\t5\n");
        write("18/fdinfo/4", "pos:\t0\nlink_type:\txdp\nlink_id:\t9\nprog_id:\t5\nifindex:\t2\n");
        write("18/comm", "holder\n");
        write("net/fdinfo/4", "link_type:\txdp\nprog_id:\t6\n");
        assert_eq!(of_xdp_link(proc.path(), 5).as_deref(), Some("18 (holder)"));
        assert_eq!(of_xdp_link(proc.path(), 6), None);
    }
}
