//! Owners of packets as text, `curl[4711] user alice cgroup /user.slice`, and as JSON.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};
use strait_capture::Frame;
use strait_capture::owners::{Container, Details, Losses, Owner, Owners};
use strait_program::output::printable;

use crate::Error;

/// Digits of a container's identifier in text, as other programs abbreviate it.
const ID_DIGITS: usize = 12;

/// Owner as text. Control characters of names are replaced, and names are quoted that could pass
/// for more than a name: a process chooses its own, and often that of its cgroup.
pub(crate) struct OwnerText<'a>(pub(crate) &'a Owner);

impl fmt::Display for OwnerText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", process_name(self.0))?;
        let Some(Details { uid, user, cgroup, container, .. }) = &self.0.details else { return Ok(()) };
        write!(f, " user ")?;
        match user {
            Some(user) => write!(f, "{}", quoted(user))?,
            None => write!(f, "{uid}")?,
        }
        if let Some(cgroup) = cgroup {
            write!(f, " cgroup {}", quoted(cgroup))?;
        }
        container.as_deref().map_or(Ok(()), |container| write_container(f, container))
    }
}

fn write_container(f: &mut fmt::Formatter<'_>, container: &Container) -> fmt::Result {
    let Container { id, name, pod } = container;
    write!(f, " container {}", quoted(id.get(..ID_DIGITS).unwrap_or(id)))?;
    if let Some(name) = name {
        write!(f, " ({})", quoted(name))?;
    }
    let Some(pod) = pod else { return Ok(()) };
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => write!(f, " pod {}/{}", quoted(namespace), quoted(name)),
        _ => write!(f, " pod {}", quoted(&pod.uid)),
    }
}

/// Returns name and identifier of a process, `curl[4711]`.
pub(crate) fn process_name(owner: &Owner) -> String {
    match &owner.details {
        Some(details) => format!("{}[{}]", quoted(&details.command), owner.pid),
        None => format!("process {}", owner.pid),
    }
}

/// Returns a name on one line. It is quoted, with its quotes doubled, if it has a character that
/// ends or surrounds a name.
fn quoted(name: &str) -> String {
    let name = one_line(name);
    if name.is_empty() || name.contains([' ', '"', '[', ']', '(', ')']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name
    }
}

/// Replaces control characters, also line ends, which a process can have in its name.
fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// Returns a notice of the owners that could not be reported, if there are any.
pub(super) fn losses(owners: &Owners) -> Option<String> {
    match owners.losses() {
        Losses { failures: 0, evicted: 0 } => None,
        Losses { failures, evicted } => Some(format!(
            "{failures} sockets have no recorded owner, because the kernel had no memory; of the process of {evicted} \
             packets only the number is known, because too many other processes used sockets since"
        )),
    }
}

/// Returns the fields of an owner in JSON. Control characters of names are replaced as in text: a
/// terminal would take those from U+0080 to U+009F, which JSON does not escape.
pub(crate) fn owner_json(owner: &Owner) -> Value {
    let Owner { pid, details } = owner;
    let Some(Details { command, uid, user, cgroup, container }) = details else {
        return json!({ "pid": pid });
    };
    let mut fields = json!({
        "pid": pid,
        "command": one_line(command),
        "uid": uid,
        "user": user.as_deref().map(one_line),
        "cgroup": cgroup.as_deref().map(one_line),
    });
    if let Some(Container { id, name, pod }) = container.as_deref() {
        fields["container"] = json!({ "id": one_line(id), "name": name.as_deref().map(one_line) });
        if let Some(pod) = pod {
            fields["pod"] = json!({
                "uid": pod.uid,
                "name": pod.name.as_deref().map(one_line),
                "namespace": pod.namespace.as_deref().map(one_line),
            });
        }
    }
    fields
}

/// Maximum number of owners with texts at a time.
const TEXTS_MAX: usize = 4096;

/// Owners as columns of tables.
pub(super) struct OwnerTexts {
    owners: Owners,
    /// Texts by process, with the owner that they are of.
    texts: HashMap<u32, (Arc<Owner>, Arc<strait_table::Owner>)>,
}

impl OwnerTexts {
    pub(super) fn new(owners: Owners) -> Self {
        Self { owners, texts: HashMap::new() }
    }

    pub(super) fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Returns the owner of a frame.
    pub(super) fn of(&mut self, frame: &Frame<'_>) -> Result<Option<Arc<strait_table::Owner>>, Error> {
        let Some(found) = self.owners.of(frame)? else { return Ok(None) };
        let owner = found.owner;
        if let Some((known, text)) = self.texts.get(&owner.pid)
            && Arc::ptr_eq(known, &owner)
        {
            return Ok(Some(Arc::clone(text)));
        }
        if self.texts.len() >= TEXTS_MAX {
            self.texts.clear();
        }
        let text = Arc::new(columns(&owner));
        self.texts.insert(owner.pid, (owner, Arc::clone(&text)));
        Ok(Some(text))
    }
}

fn columns(owner: &Owner) -> strait_table::Owner {
    let process_id = owner.pid;
    let Some(details) = &owner.details else {
        return strait_table::Owner { process_id, ..strait_table::Owner::default() };
    };
    let Details { command, uid, user, cgroup, container } = details;
    strait_table::Owner {
        process_id,
        process: Some(one_line(command)),
        user: Some(user.as_deref().map_or_else(|| uid.to_string(), one_line)),
        cgroup: cgroup.as_deref().map(one_line),
        container: container.as_deref().map(|container| one_line(&container.id)),
    }
}

/// Maximum number of owners that are counted separately.
const OWNERS_MAX: usize = 1 << 16;

/// Packets and bytes of each owner.
pub(crate) struct Tally {
    owners: Owners,
    /// Owners by process identifier.
    counted: HashMap<u32, Counted>,
    /// Owners with an identifier that a later process has, and programs that a process executed
    /// before its present one.
    earlier: Vec<Counted>,
    unknown: Count,
    /// Owners beyond [`OWNERS_MAX`].
    others: Count,
}

struct Counted {
    owner: Arc<Owner>,
    count: Count,
}

#[derive(Clone, Copy, Default)]
struct Count {
    packets: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, frame: &Frame<'_>) {
        self.packets += 1;
        self.bytes += u64::from(frame.wire_len);
    }

    fn json(self) -> Value {
        json!({ "packets": self.packets, "bytes": self.bytes })
    }
}

impl Tally {
    pub(super) fn new(owners: Owners) -> Self {
        let (unknown, others) = (Count::default(), Count::default());
        Self { owners, counted: HashMap::new(), earlier: Vec::new(), unknown, others }
    }

    pub(super) fn owners(&self) -> &Owners {
        &self.owners
    }

    pub(super) fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let Some(found) = self.owners.of(frame)? else {
            self.unknown.add(frame);
            return Ok(());
        };
        let is_full = self.counted.len() + self.earlier.len() >= OWNERS_MAX;
        let owner = found.owner;
        match self.counted.get_mut(&owner.pid) {
            Some(counted) if Arc::ptr_eq(&counted.owner, &owner) || counted.owner == owner => {
                counted.count.add(frame);
            }
            _ if is_full => self.others.add(frame),
            _ => {
                let pid = owner.pid;
                let mut counted = Counted { owner, count: Count::default() };
                counted.count.add(frame);
                self.earlier.extend(self.counted.insert(pid, counted));
            }
        }
        Ok(())
    }

    /// Returns the counts, the owner with the most bytes first.
    pub(super) fn json(&self) -> Value {
        let mut all: Vec<_> = self.counted.values().chain(&self.earlier).collect();
        all.sort_by_key(|counted| (Reverse(counted.count.bytes), counted.owner.pid));
        let known: Vec<_> = all.iter().map(|counted| counted_json(counted)).collect();
        let losses = self.owners.losses();
        json!({
            "known": known,
            "unknown": self.unknown.json(),
            "others": self.others.json(),
            "failures": losses.failures,
            "evicted": losses.evicted,
        })
    }
}

fn counted_json(counted: &Counted) -> Value {
    let mut fields = owner_json(&counted.owner);
    fields["packets"] = counted.count.packets.into();
    fields["bytes"] = counted.count.bytes.into();
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_that_have_the_form_of_other_fields() {
        let text = |command: &str, cgroup: &str| {
            let details = Details {
                command: command.into(),
                uid: 0,
                user: Some("root".into()),
                cgroup: Some(cgroup.into()),
                container: None,
            };
            OwnerText(&Owner { pid: 7, details: Some(details) }).to_string()
        };
        assert_eq!(text("curl", "/user.slice/a-b\\x2dc"), "curl[7] user root cgroup /user.slice/a-b\\x2dc");
        assert_eq!(
            text("sshd[1] user ro", "/x cgroup faked container deadbeef"),
            "\"sshd[1] user ro\"[7] user root cgroup \"/x cgroup faked container deadbeef\""
        );
        assert_eq!(text("a\"[1]", ""), "\"a\"\"[1]\"[7] user root cgroup \"\"");
        assert_eq!(text("sshd[1]", "/a\nb"), "\"sshd[1]\"[7] user root cgroup \"/a b\"");
    }

    #[test]
    fn names_have_no_control_characters_in_text_and_json() {
        let details = Details {
            command: "a\u{9b}2J\u{202e}b".into(),
            uid: 1,
            user: None,
            cgroup: Some("/c\u{9b}\u{2066}".into()),
            container: None,
        };
        let owner = Owner { pid: 7, details: Some(details) };
        for shown in [OwnerText(&owner).to_string(), owner_json(&owner).to_string()] {
            let is_plain = |c: char| c.is_ascii() && !c.is_control();
            assert!(shown.chars().all(is_plain) && shown.contains("u{202e}b"), "{shown:?}");
        }
    }
}
