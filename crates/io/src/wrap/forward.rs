//! Forwarding: the methods of a disk or file that passes calls on to another one.
//!
//! Rejected: a trait of wrappers with these bodies as defaults. It lists every method a second
//! time, and a wrapper could forget one that it must not forward.

/// Defines methods of a [`Disk`](crate::Disk) or [`DiskFile`](crate::DiskFile) that call the same
/// method of a field: `forward!(inner: create_dir, remove);` within the `impl`.
#[macro_export]
macro_rules! forward {
    ($field:ident: $($method:ident),* $(,)?) => { $($crate::forward!(@$method $field);)* };
    ($field:ident $method:ident($($name:ident: $type:ty),*) -> $result:ty) => {
        fn $method(&self, $($name: $type),*) -> $result {
            self.$field.$method($($name),*)
        }
    };
    (@anchor $f:ident) => {
        $crate::forward!($f anchor(
            dir: &std::path::Path
        ) -> $crate::Result<Box<dyn $crate::Anchor>>);
    };
    (@absolute $f:ident) => {
        $crate::forward!($f absolute(path: &std::path::Path) -> $crate::Result<std::path::PathBuf>);
    };
    (@open $f:ident) => {
        $crate::forward!($f open(
            path: &std::path::Path,
            mode: $crate::OpenMode,
            access: $crate::Access
        ) -> $crate::Result<std::sync::Arc<dyn $crate::DiskFile>>);
    };
    (@create_dir $f:ident) => {
        $crate::forward!($f create_dir(path: &std::path::Path) -> $crate::Result<()>);
    };
    (@remove_dir $f:ident) => {
        $crate::forward!($f remove_dir(path: &std::path::Path) -> $crate::Result<()>);
    };
    (@remove $f:ident) => {
        $crate::forward!($f remove(path: &std::path::Path) -> $crate::Result<()>);
    };
    (@rename $f:ident) => {
        $crate::forward!($f rename(
            from: &std::path::Path,
            to: &std::path::Path
        ) -> $crate::Result<()>);
    };
    (@hard_link $f:ident) => {
        $crate::forward!($f hard_link(
            from: &std::path::Path,
            to: &std::path::Path
        ) -> $crate::Result<()>);
    };
    (@list $f:ident) => {
        $crate::forward!($f list(dir: &std::path::Path) -> $crate::Result<Vec<$crate::Entry>>);
    };
    (@kind $f:ident) => {
        $crate::forward!($f kind(
            path: &std::path::Path
        ) -> $crate::Result<Option<$crate::EntryKind>>);
    };
    (@sync_dir $f:ident) => {
        $crate::forward!($f sync_dir(dir: &std::path::Path) -> $crate::Result<()>);
    };
    (@lock $f:ident) => {
        $crate::forward!($f lock(
            path: &std::path::Path
        ) -> $crate::Result<Box<dyn $crate::LockGuard>>);
    };
    (@lock_shared $f:ident) => {
        $crate::forward!($f lock_shared(
            path: &std::path::Path
        ) -> $crate::Result<Box<dyn $crate::LockGuard>>);
    };
    (@is_locked $f:ident) => {
        $crate::forward!($f is_locked(path: &std::path::Path) -> $crate::Result<bool>);
    };
    (@free_bytes $f:ident) => {
        $crate::forward!($f free_bytes(dir: &std::path::Path) -> $crate::Result<u64>);
    };
    (@allocated_bytes $f:ident) => {
        $crate::forward!($f allocated_bytes(path: &std::path::Path) -> $crate::Result<u64>);
    };
    (@clock $f:ident) => { $crate::forward!($f clock() -> &dyn $crate::Clock); };
    (@queue $f:ident) => {
        $crate::forward!($f queue(depth: usize) -> $crate::Result<Box<dyn $crate::IoQueue>>);
    };
    (@queue_kind $f:ident) => { $crate::forward!($f queue_kind() -> $crate::QueueKind); };
    (@path $f:ident) => { $crate::forward!($f path() -> &std::path::Path); };
    (@access $f:ident) => { $crate::forward!($f access() -> $crate::Access); };
    (@len $f:ident) => { $crate::forward!($f len() -> $crate::Result<u64>); };
    (@read_at $f:ident) => {
        $crate::forward!($f read_at(buffer: &mut [u8], offset: u64) -> $crate::Result<()>);
    };
    (@write_at $f:ident) => {
        $crate::forward!($f write_at(bytes: &[u8], offset: u64) -> $crate::Result<()>);
    };
    (@append $f:ident) => { $crate::forward!($f append(bytes: &[u8]) -> $crate::Result<u64>); };
    (@set_len $f:ident) => { $crate::forward!($f set_len(len: u64) -> $crate::Result<()>); };
    (@allocate $f:ident) => { $crate::forward!($f allocate(len: u64) -> $crate::Result<()>); };
    (@sync $f:ident) => { $crate::forward!($f sync() -> $crate::Result<()>); };
    (@forget $f:ident) => { $crate::forward!($f forget(offset: u64, len: u64) -> ()); };
}
