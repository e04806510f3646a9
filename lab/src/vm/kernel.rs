//! Kernels of guests: images in the form that QEMU boots fastest, and modules.
//!
//! Debian packs a kernel as a bzImage, which takes seconds to unpack itself in emulation. QEMU
//! boots the ELF image inside it directly by PVH, so the image is extracted once and stored beside
//! the bzImage.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use super::parts;

/// Time limit for unpacking.
const UNPACK_LIMIT: Duration = Duration::from_mins(1);
/// Header fields of a bzImage and their offsets: Documentation/arch/x86/boot.rst, "The Real-Mode
/// Kernel Header".
const SETUP_SECTS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR_BYTES: usize = 512;
/// Length of the uncompressed size, which the kernel build appends to the payload.
const SIZE_BYTES: usize = 4;

/// Kernel of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Linux 7.2: AF_XDP zero-copy on igb and virtio-net.
    V7_2,
    /// Linux 6.12, to test on an older kernel.
    V6_12,
    /// Linux 7.2 that checks itself (KASAN, lockdep, DMA debugging, kmemleak), built by
    /// `scripts/setup-vm --debug-kernel`.
    Debug,
    /// Linux 7.2 that finds data races in other modules than its own (KCSAN), built by
    /// `scripts/setup-vm --kcsan-kernel`.
    Kcsan,
}

impl Kernel {
    /// Returns true if the kernel checks itself or its modules. It was built for the lab.
    pub fn is_checking(self) -> bool {
        matches!(self, Self::Debug | Self::Kcsan)
    }

    /// Returns the version, such as `7.2`, or the checks of the kernel, such as `debug`.
    pub fn version(self) -> &'static str {
        match self {
            Self::V7_2 => "7.2",
            Self::V6_12 => "6.12",
            Self::Debug => "debug",
            Self::Kcsan => "kcsan",
        }
    }

    fn folder(self) -> PathBuf {
        parts::part(&format!("linux-{}", self.version()))
    }

    /// Returns the path of its image: an ELF, or a bzImage for a checking kernel, which has no PVH.
    pub(super) fn image(self) -> PathBuf {
        let folder = self.folder();
        if self.is_checking() {
            return folder.join("bzImage");
        }
        let image = folder.join("vmlinux");
        if !image.is_file() {
            let packed = find_part(&folder, "vmlinuz").expect("a kernel package has a vmlinuz");
            unpack_image(&packed, &image);
        }
        image
    }

    /// Returns the modules `names` after their dependencies, in load order, as (name, ELF).
    pub(super) fn modules(self, names: &BTreeSet<&'static str>) -> Vec<(String, Vec<u8>)> {
        let mut loaded = Vec::new();
        for name in names {
            self.add_module(name, &mut loaded);
        }
        loaded
    }

    /// Returns the module `name`; none if a checking kernel, which has few modules, contains it.
    fn read_module(self, name: &str) -> Option<Vec<u8>> {
        let file = format!("{name}.ko");
        if self.is_checking() {
            let module = find_part(&self.folder(), &file);
            let builtin = fs::read_to_string(self.folder().join("build/modules.builtin"));
            let builtin = builtin.expect("a checking kernel lists what it contains");
            let contained = builtin.lines().any(|line| line.ends_with(&format!("/{file}")));
            assert!(module.is_some() || contained, "lab/vm/guest.config leaves {name} out");
            return module.map(|path| fs::read(path).expect("a module can be read"));
        }
        let packed = find_part(&self.folder(), &format!("{name}.ko.xz"))
            .unwrap_or_else(|| panic!("Linux {self:?} has no module {name}"));
        let finished =
            parts::launch("usr/bin/xz").args(["--decompress", "--stdout"]).arg(packed).run(UNPACK_LIMIT);
        Some(finished.expect("xz runs").success().stdout)
    }

    /// Returns the module `name` as [`Self::read_module`] does, which is called once for each: most
    /// guests have the same modules.
    fn module(self, name: &str) -> Option<Vec<u8>> {
        type Modules = HashMap<(&'static str, String), Option<Vec<u8>>>;
        static MODULES: LazyLock<Mutex<Modules>> = LazyLock::new(Mutex::default);
        let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
        modules.entry((self.version(), name.to_owned())).or_insert_with(|| self.read_module(name)).clone()
    }

    fn add_module(self, name: &str, loaded: &mut Vec<(String, Vec<u8>)>) {
        if loaded.iter().any(|(known, _)| known == name) {
            return;
        }
        let Some(module) = self.module(name) else { return };
        for needed in dependencies(&module) {
            self.add_module(&needed, loaded);
        }
        loaded.push((name.to_owned(), module));
    }
}

/// Returns the first file of a kernel with a name that starts with `start`; distributions place it
/// differently.
fn find_part(folder: &Path, start: &str) -> Option<PathBuf> {
    ["boot", "lib/modules", "usr/lib/modules"].iter().find_map(|place| find(&folder.join(place), start))
}

/// Returns the first file below `folder` with a name that starts with `start`.
fn find(folder: &Path, start: &str) -> Option<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    entries.iter().find_map(|entry| {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return find(&entry.path(), start);
        }
        entry.file_name().to_string_lossy().starts_with(start).then(|| entry.path())
    })
}

/// Extracts the ELF image from the bzImage `packed`. Concurrent tests are safe: each writes a
/// separate file and renames it.
fn unpack_image(packed: &Path, image: &Path) {
    let bytes = fs::read(packed).expect("the bzImage can be read");
    let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let start = (usize::from(bytes[SETUP_SECTS]) + 1) * SECTOR_BYTES + field(PAYLOAD_OFFSET);
    let payload = &bytes[start..start + field(PAYLOAD_LENGTH) - SIZE_BYTES];

    let folder = image.parent().expect("an image lies in a folder");
    let scratch = tempfile::tempdir_in(folder).expect("the cache can be written");
    let (compressed, whole) = (scratch.path().join("vmlinux.zst"), scratch.path().join("vmlinux"));
    fs::write(&compressed, payload).expect("the cache has room");
    let zstd =
        parts::launch("usr/bin/zstd").args(["--decompress", "--quiet", "-o"]).arg(&whole).arg(&compressed);
    let _ = zstd.run(UNPACK_LIMIT).expect("zstd runs").success();
    fs::rename(whole, image).expect("the cache can be written");
}

/// Returns the dependencies in a module's `.modinfo`.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|bytes| bytes == key) else { return Vec::new() };
    let names = module[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(names);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_modinfo() {
        assert_eq!(
            dependencies(b"license=GPL\0depends=dca,i2c-algo-bit\0intree=Y\0"),
            ["dca", "i2c-algo-bit"]
        );
        assert!(dependencies(b"license=GPL\0depends=\0").is_empty());
        assert!(dependencies(b"license=GPL\0").is_empty());
    }
}
