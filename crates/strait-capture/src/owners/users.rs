//! Names of users, from `/etc/passwd`. Directories of users in a network are not asked, because an
//! answer could take long.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

const PATH: &str = "/etc/passwd";
/// Maximum size that is read.
const BYTES_MAX: u64 = 1 << 20;

/// Names by number.
pub(super) struct Users {
    names: HashMap<u32, Arc<str>>,
}

impl Users {
    /// Reads the names. Without the file users have no names.
    pub(super) fn read() -> Self {
        let mut bytes = Vec::new();
        let read = File::open(PATH).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
        let text = read.map(|_| String::from_utf8_lossy(&bytes)).unwrap_or_default();
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let mut names = HashMap::new();
        for line in text.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(uid)) = (fields.next(), fields.nth(1).and_then(|uid| uid.parse().ok())) {
                // The first of several names counts, as in getpwuid(3).
                names.entry(uid).or_insert_with(|| name.into());
            }
        }
        Self { names }
    }

    pub(super) fn name(&self, uid: u32) -> Option<Arc<str>> {
        self.names.get(&uid).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_name_of_a_number_counts() {
        let users = Users::parse("root:x:0:0::/root:/bin/sh\ntoor:x:0:0:::\nbroken\nwww:x:33:33:::\n");
        let name = |uid| users.name(uid).map(|name| name.to_string());
        assert_eq!([name(0), name(33), name(1)], [Some("root".into()), Some("www".into()), None]);
    }
}
