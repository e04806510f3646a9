//! URL of a bucket, which the program that writes files and the one that uploads them parse, and
//! the counts that the latter reports to the former.

use std::fmt;
use std::str::FromStr;

/// Lengths of a bucket's name (Amazon S3 User Guide, bucket naming rules).
const BUCKET_LEN: std::ops::RangeInclusive<usize> = 3..=63;
/// Maximum length of a prefix: a key has at most 1024 bytes, and the path of a table's file some
/// 200.
const PREFIX_LEN_MAX: usize = 512;

/// Bucket and prefix of objects: `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Name of the bucket.
    pub name: String,
    /// Empty, or names separated by `/`.
    pub prefix: String,
}

impl FromStr for Bucket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("s3://") else {
            return Err("give a bucket and a prefix, as in s3://lake/raw".into());
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_of_bucket = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
        let ends_well = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_bucket = BUCKET_LEN.contains(&bucket.len())
            && bucket.chars().all(is_of_bucket)
            && bucket.starts_with(ends_well)
            && bucket.ends_with(ends_well);
        if !is_bucket {
            return Err(format!("{bucket}: a bucket has 3 to 63 small letters, digits, '.' and '-'"));
        }
        let is_of_prefix = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '=');
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && name.chars().all(is_of_prefix);
        if prefix.len() > PREFIX_LEN_MAX || !(prefix.is_empty() || prefix.split('/').all(is_name)) {
            return Err(format!(
                "{prefix}: a prefix has letters, digits, '.', '-', '_' and '=' between each '/'"
            ));
        }
        Ok(Self { name: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, prefix } = self;
        if prefix.is_empty() { write!(f, "s3://{name}") } else { write!(f, "s3://{name}/{prefix}") }
    }
}

/// Counts of an upload since its program has started: `FILES BYTES RETRIED`, a line on its standard
/// output after each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files that were sent.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Attempts that failed, after which the files are sent again.
    pub retried: u64,
}

/// Maximum length of the line.
pub const PROGRESS_LEN_MAX: usize = 64;

impl Progress {
    /// Returns the sum with the counts of an earlier program.
    #[must_use]
    pub fn plus(self, earlier: Self) -> Self {
        Self {
            files: self.files.saturating_add(earlier.files),
            bytes: self.bytes.saturating_add(earlier.bytes),
            retried: self.retried.saturating_add(earlier.retried),
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.files, self.bytes, self.retried)
    }
}

impl FromStr for Progress {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[files, bytes, retried]) => Ok(Self { files, bytes, retried }),
            _ => Err("the progress of an upload has three numbers".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_short_line_of_three_numbers() {
        let progress = Progress { files: 1, bytes: u64::MAX, retried: 3 };
        assert_eq!(progress.to_string().parse(), Ok(progress));
        let most = Progress { files: u64::MAX, bytes: u64::MAX, retried: u64::MAX };
        assert!(most.to_string().len() <= PROGRESS_LEN_MAX);
        assert_eq!(most.plus(progress), most);
        for line in ["", "1 2", "1 2 3 4", "1 2 -3", "1 2 x"] {
            assert!(line.parse::<Progress>().is_err(), "{line}");
        }
    }

    #[test]
    fn urls_are_parsed_strictly() {
        for (text, bucket, prefix) in [
            ("s3://lake", "lake", ""),
            ("s3://lake/", "lake", ""),
            ("s3://my.lake-2/raw/fr=1", "my.lake-2", "raw/fr=1"),
            ("s3://lake/raw/", "lake", "raw"),
        ] {
            let found: Bucket = text.parse().unwrap();
            assert_eq!((&*found.name, &*found.prefix), (bucket, prefix), "{text}");
        }
        for text in [
            "",
            "lake",
            "s3:lake",
            "s3://",
            "s3://la",
            "s3://Lake",
            "s3://lake_1",
            "s3://-lake",
            "s3://lake:80/x",
            "s3://lake//x",
            "s3://lake/x//y",
            "s3://lake/../x",
            "s3://lake/a b",
            "s3://lake/x?y=1",
            "s3://u@lake/x",
        ] {
            assert!(text.parse::<Bucket>().is_err(), "{text}");
        }
    }
}
