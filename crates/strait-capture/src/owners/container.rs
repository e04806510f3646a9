//! Container and pod that the path of a cgroup names.
//!
//! | runtime | last parts of the path |
//! |---|---|
//! | docker | `docker-ID.scope`, `docker/ID` |
//! | containerd | `cri-containerd-ID.scope`, `kubepods-burstable-podUID.slice:cri-containerd:ID` |
//! | CRI-O | `crio-ID.scope` |
//! | podman | `libpod-ID.scope` |
//! | Kubernetes | `kubepods-burstable-podUID.slice/…`, `kubepods/burstable/podUID/ID` |
//! | LXC | `lxc.payload.NAME` |
//!
//! The kubelet links the log of each container in `/var/log/containers` under the names of its pod,
//! namespace and container. Docker has the configuration of each container in
//! `/var/lib/docker/containers`, which only root can read. No runtime is asked.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

const ID_LEN: usize = 64;
const LOGS: &str = "/var/log/containers";
const DOCKER: &str = "/var/lib/docker/containers";
/// Maximum number of bytes of a container's configuration. One with more has no name here.
const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of entries of the directory of logs that are read.
const LOGS_MAX: usize = 1 << 14;
/// Prefix of an LXC container's cgroup.
const LXC: &str = "lxc.payload.";

/// Container of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Identifier of 64 hexadecimal digits; the name in LXC.
    pub id: String,
    /// Name in its pod, if it is a container of Kubernetes on this host; name in Docker.
    pub name: Option<String>,
    /// Pod of the container.
    pub pod: Option<Pod>,
}

/// Pod of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Unique identifier.
    pub uid: String,
    /// Name and namespace, if the kubelet of this host runs it.
    pub name: Option<String>,
    /// See `name`.
    pub namespace: Option<String>,
}

impl Container {
    /// Returns the container that the path names; `None` if it names none.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let id = path.split('/').rev().find_map(id)?.to_owned();
        let uid = path.split('/').find_map(pod_uid);
        let pod = uid.map(|uid| Pod { uid, name: None, namespace: None });
        Some(Self { id, name: None, pod })
    }

    /// Adds the names that the kubelet has given to a container of a pod, or Docker to another one.
    pub(super) fn add_names(&mut self, Places { logs, docker }: Places<'_>) {
        let Some(pod) = &mut self.pod else {
            self.name = name_in_docker(docker, &self.id);
            return;
        };
        let Ok(entries) = fs::read_dir(logs) else { return };
        for entry in entries.take(LOGS_MAX).flatten() {
            let file = entry.file_name();
            if let Some([name, namespace, container]) = file.to_str().and_then(|file| names(file, &self.id)) {
                (pod.name, pod.namespace) = (Some(name.to_owned()), Some(namespace.to_owned()));
                self.name = Some(container.to_owned());
                return;
            }
        }
    }

    /// Returns true if `wanted` is the container's name, or its identifier or the start of it.
    pub(super) fn is_called(&self, wanted: &str) -> bool {
        let is_id = wanted.len() >= ID_PREFIX_MIN && self.id.starts_with(wanted);
        is_id || self.id == wanted || self.name.as_deref() == Some(wanted)
    }
}

/// Minimum number of digits of an abbreviated identifier.
const ID_PREFIX_MIN: usize = 8;

/// Directories with the names of this host's containers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    /// Logs of the kubelet's containers.
    logs: &'a Path,
    /// Docker's containers.
    docker: &'a Path,
}

impl Places<'static> {
    /// Returns the directories of this host.
    pub(super) fn here() -> Self {
        Self { logs: Path::new(LOGS), docker: Path::new(DOCKER) }
    }
}

/// Configuration of a container of Docker. Labels and the environment are those of its image, and
/// may have any name.
#[derive(Deserialize)]
struct Configuration {
    #[serde(rename = "Name")]
    name: String,
}

/// Returns the name in the configuration of a container. Names of Docker begin with a slash.
fn name_in_docker(containers: &Path, id: &str) -> Option<String> {
    // Names of LXC are those that users gave.
    if id.len() != ID_LEN {
        return None;
    }
    let file = File::open(containers.join(id).join("config.v2.json")).ok()?;
    let mut text = Vec::new();
    file.take(CONFIGURATION_BYTES_MAX).read_to_end(&mut text).ok()?;
    let Configuration { name } = serde_json::from_slice(&text).ok()?;
    let name = name.strip_prefix('/')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_name)).then(|| name.to_owned())
}

/// Returns the container's identifier in a part of a path.
fn id(part: &str) -> Option<&str> {
    if let Some(name) = part.strip_prefix(LXC) {
        return Some(name);
    }
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let at = part.rfind(['-', ':']).map_or(0, |at| at + 1);
    let (prefix, id) = part.split_at(at);
    let is_id = id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    // A monitor is a process of the host, in a scope with the container's identifier.
    (is_id && !prefix.ends_with("conmon-")).then_some(id)
}

/// Returns the pod's identifier in a part of a path.
fn pod_uid(part: &str) -> Option<String> {
    const UID_LEN: usize = 36;
    let at = part.find("pod").filter(|at| *at == 0 || part[..*at].ends_with('-'));
    let at = at.or_else(|| part.find("-pod").map(|at| at + 1))?;
    let uid = part.get(at + 3..at + 3 + UID_LEN)?.replace('_', "-");
    let is_uid = uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

/// Returns pod, namespace and container of a log's name, `POD_NAMESPACE_CONTAINER-ID.log`.
fn names<'a>(file: &'a str, id: &str) -> Option<[&'a str; 3]> {
    let rest = file.strip_suffix(".log")?.strip_suffix(id)?.strip_suffix('-')?;
    let mut parts = rest.splitn(3, '_');
    Some([parts.next()?, parts.next()?, parts.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn paths_of_the_runtimes_name_their_containers() {
        let underscores = UID.replace('-', "_");
        for path in [
            format!("/system.slice/docker-{ID}.scope"),
            format!("/docker/{ID}"),
            format!("/docker/{ID}/init.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
        ] {
            let found = Container::of_path(&path).unwrap();
            assert_eq!((found.id.as_str(), found.pod), (ID, None), "{path}");
        }
        for path in [
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!("/kubepods.slice/kubepods-pod{underscores}.slice/crio-{ID}.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{underscores}.slice/cri-containerd-{ID}.scope"
            ),
            format!("/system.slice/kubepods-burstable-pod{underscores}.slice:cri-containerd:{ID}"),
        ] {
            let found = Container::of_path(&path).unwrap();
            assert_eq!((found.id.as_str(), found.pod.unwrap().uid.as_str()), (ID, UID), "{path}");
        }
        assert_eq!(Container::of_path("/lxc.payload.web/system.slice").unwrap().id, "web");
    }

    #[test]
    fn other_paths_name_no_container() {
        for path in [
            "/".to_owned(),
            "/user.slice/user-0.slice/session-1.scope".to_owned(),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/system.slice/{}", &ID[1..]),
            "/kubepods.slice/kubepods-podx.slice".to_owned(),
        ] {
            assert_eq!(Container::of_path(&path), None, "{path}");
        }
    }

    #[test]
    fn names_come_from_the_log_of_the_container() {
        let directory = tempfile::tempdir().unwrap();
        let other = ID.replace('0', "f");
        for file in [format!("web-1_shop_app_x-{other}.log"), format!("web-1_shop_app-{ID}.log")] {
            fs::write(directory.path().join(file), "").unwrap();
        }
        let mut found = Container::of_path(&format!("/kubepods/pod{UID}/{ID}")).unwrap();
        assert!(!found.is_called("app"));
        found.add_names(Places { logs: directory.path(), docker: directory.path() });
        let pod = found.pod.as_ref().unwrap();
        let names = [found.name.as_deref(), pod.name.as_deref(), pod.namespace.as_deref()];
        assert_eq!(names, [Some("app"), Some("web-1"), Some("shop")]);
        assert!(found.is_called("app") && found.is_called(&ID[..12]) && found.is_called(ID));
        assert!(!found.is_called(&ID[..4]) && !found.is_called("web"));
    }

    #[test]
    fn name_comes_from_the_configuration_of_docker() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places { logs: directory.path(), docker: directory.path() };
        let mut found = Container::of_path(&format!("/docker/{ID}")).unwrap();
        found.add_names(places);
        assert_eq!(found.name, None);
        fs::create_dir(directory.path().join(ID)).unwrap();
        for (text, name) in [
            (
                r#"{"MountPoints":{"/x":{"Name":"data"}},"Name":"/web-1.a","Driver":"overlay2"}"#,
                Some("web-1.a"),
            ),
            (r#"{"Labels":{"a":"\"Name\":\"/false\""},"Name":"/web"}"#, Some("web")),
            // An image selects its labels.
            (r#"{"Config":{"Labels":{"Name":"/false"}},"Name":"/web"}"#, Some("web")),
            (r#"{"Config":{"Labels":{"Name":"/false"}}}"#, None),
            (r#"{"Name":"web"}"#, None),
            (r#"{"Name":"/a b"}"#, None),
            (r#"{"Name":"/"}"#, None),
            (r#"{"Name":"/web"#, None),
        ] {
            fs::write(directory.path().join(ID).join("config.v2.json"), text).unwrap();
            found.add_names(places);
            assert_eq!(found.name.as_deref(), name, "{text}");
        }
    }
}
