//! Verification of a bucket: every object that a backup needs is there, and has its bytes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::bucket::Bucket;
use crate::catalog::hex;
use crate::error::{Error, Result};
use crate::manifest::{DATA, FileEntry, upload_of};
use crate::stream::{Piece, Wanted};

/// Report of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Problems; none if every backup can be restored.
    pub problems: Vec<Problem>,
    /// Backups that were checked.
    pub backups: u64,
    /// Objects that were checked.
    pub objects: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Objects that no backup needs and no upload protects; `terrane backups drop` deletes them.
    pub unreferenced_objects: u64,
    /// Bytes of these.
    pub unreferenced_bytes: u64,
}

/// A fault of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// The object.
    pub object: String,
    /// Broken rule.
    pub rule: String,
    /// Names of the backups that need the object.
    pub backups: Vec<String>,
}

impl Bucket {
    /// Reads every object of every backup, several ranges at a time, and checks lengths and
    /// checksums. With `quick`, only asks whether objects are there and how long they are.
    ///
    /// Cost: a read for each 4 MiB; with `quick` a request for each object.
    ///
    /// # Errors
    /// [`Error::NoBackup`]; [`Error::Request`] and the errors of the catalog. Faults of objects are
    /// in the report.
    pub fn verify(&self, quick: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport> {
        let catalog = self.catalog_with_backups()?;
        let mut report = VerifyReport {
            problems: Vec::new(),
            backups: catalog.backups.len() as u64,
            objects: 0,
            bytes: 0,
            unreferenced_objects: 0,
            unreferenced_bytes: 0,
        };

        let mut users: BTreeMap<String, (FileEntry, Vec<String>)> = BTreeMap::new();
        for info in &catalog.backups {
            report.objects += 1;
            match self.manifest(info) {
                Ok(manifest) => {
                    for file in manifest.files {
                        let user =
                            users.entry(file.object.clone()).or_insert_with(|| (file, Vec::new()));
                        user.1.push(info.id.clone());
                    }
                }
                Err(error @ (Error::Missing { .. } | Error::Damaged { .. })) => {
                    report.problems.push(Problem {
                        object: info.manifest.clone(),
                        rule: error.to_string(),
                        backups: vec![info.id.clone()],
                    });
                }
                Err(error) => return Err(error),
            }
        }

        let objects: Vec<&(FileEntry, Vec<String>)> = users.values().collect();
        report.objects += objects.len() as u64;
        let faults = if quick {
            self.lengths(&objects)?
        } else {
            self.sums(&objects, &mut report, progress)?
        };
        for (at, rule) in faults {
            let (file, backups) = objects[at];
            let mut backups = backups.clone();
            backups.dedup();
            report.problems.push(Problem { object: file.object.clone(), rule, backups });
        }

        let entered: BTreeSet<&str> =
            catalog.uploads.iter().map(|upload| upload.id.as_str()).collect();
        for object in self.list(DATA)? {
            let is_entered = upload_of(&object.key).is_some_and(|upload| entered.contains(upload));
            if !is_entered && !users.contains_key(&object.key) {
                report.unreferenced_objects += 1;
                report.unreferenced_bytes += object.bytes;
            }
        }
        Ok(report)
    }

    fn lengths(&self, objects: &[&(FileEntry, Vec<String>)]) -> Result<BTreeMap<usize, String>> {
        let mut faults = BTreeMap::new();
        for (at, (file, _)) in objects.iter().enumerate() {
            match self.len_of(&file.object)? {
                None => drop(faults.insert(at, "the object is missing".to_owned())),
                Some(len) if len != file.bytes => {
                    faults.insert(at, format!("{len} bytes, not {}", file.bytes));
                }
                Some(_) => {}
            }
        }
        Ok(faults)
    }

    fn sums(
        &self,
        objects: &[&(FileEntry, Vec<String>)],
        report: &mut VerifyReport,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BTreeMap<usize, String>> {
        let total = objects.iter().map(|(file, _)| file.bytes).sum();
        let wanted: Vec<Wanted> = objects
            .iter()
            .map(|(file, _)| Wanted { key: file.object.clone(), from: 0, bytes: file.bytes })
            .collect();
        let mut faults = BTreeMap::new();
        let mut sums = vec![Some(Sha256::new()); objects.len()];
        let mut read = vec![0; objects.len()];

        self.stream(&wanted, &mut |Piece { at, bytes }| {
            match bytes {
                Ok(bytes) => {
                    report.bytes += bytes.len() as u64;
                    read[at] += bytes.len() as u64;
                    if let Some(sum) = &mut sums[at] {
                        sum.update(&bytes);
                    }
                    progress(report.bytes, total);
                }
                Err(Error::Missing { .. }) => {
                    faults.insert(at, "the object is missing".to_owned());
                }
                Err(Error::Damaged { reason, .. }) => {
                    faults.entry(at).or_insert(reason);
                }
                Err(error) => return Err(error),
            }
            // The sum of an object is compared with its last range, so few are kept.
            let file = &objects[at].0;
            if read[at] == file.bytes
                && let Some(sum) = sums[at].take()
                && hex(&sum.finalize()) != file.sha256
            {
                faults.insert(at, "its bytes are not those that were put".to_owned());
            }
            Ok(())
        })?;
        Ok(faults)
    }
}
