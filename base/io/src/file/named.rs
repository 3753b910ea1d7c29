//! A file that a person has named. It may be a pipe, such as that of `<(...)` in a shell.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The longest time that is waited for the writer of a pipe, and between its bytes, in milliseconds: a person may have to
/// type a passphrase for it.
const PATIENCE_MS: u16 = 20_000;

/// An open file that is read without waiting for ever.
pub(super) struct Named {
    file: File,
    /// Whether it may be a pipe that has had no writer yet.
    is_unwritten: bool,
}

impl Named {
    /// Opens a file. A folder, a socket or a device is refused.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Opening a device may change what it does.
        check(fs::metadata(path)?.file_type())?;
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = options.open(path)?;
        let is_unwritten = file.metadata()?.file_type().is_fifo();
        Ok(Named { file, is_unwritten })
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Appends the text of the file, which may have up to `max` bytes.
    pub(super) fn read_text(self, max: u64, text: &mut String) -> io::Result<()> {
        self.take(max + 1).read_to_string(text)?;
        match text.len() as u64 > max {
            true => Err(ErrorKind::FileTooLarge.into()),
            false => Ok(()),
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut files = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, PollTimeout::from(PATIENCE_MS)) {
            Ok(0) => Err(io::Error::other(
                "it is a pipe that nobody writes to: nothing has come for 20 s",
            )),
            Ok(_) => Ok(()),
            // As another kind, it would be tried again.
            Err(Errno::EINTR) => Err(io::Error::other("a signal ended the wait for a pipe")),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Named {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(buffer) {
                Ok(0) if self.is_unwritten => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => {
                    self.is_unwritten = false;
                    return read;
                }
            }
            self.wait()?;
            self.is_unwritten = false;
        }
    }
}

fn check(kind: FileType) -> io::Result<()> {
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    match kind.is_file() || kind.is_fifo() {
        true => Ok(()),
        false => Err(io::Error::other("it is a socket or a device, and no file")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_secret;
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;

    fn pipe() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
        (folder, path)
    }

    fn read_text(path: &Path, max: u64) -> io::Result<String> {
        let mut text = String::new();
        Named::open(path)?.read_text(max, &mut text)?;
        Ok(text)
    }

    fn is_given_up(path: &Path) {
        let error = read_text(path, 9).unwrap_err().to_string();
        assert!(error.contains("nobody writes to"), "{error}");
    }

    #[test]
    fn a_pipe_without_a_writer_is_given_up() {
        let (_folder, path) = pipe();
        is_given_up(&path);
    }

    #[test]
    fn a_pipe_whose_writer_is_silent_is_given_up() {
        let (_folder, path) = pipe();
        let mut options = OpenOptions::new();
        let mut writer = options.read(true).write(true).open(&path).unwrap();
        writer.write_all(b"begun").unwrap();
        is_given_up(&path);
    }

    #[test]
    fn what_comes_out_of_a_pipe_is_read_to_its_end() {
        let (_folder, path) = pipe();
        for text in ["", "a", &"long ".repeat(50_000)] {
            let (written, to) = (text.to_owned(), path.clone());
            let writer = thread::spawn(move || fs::write(to, written));
            assert_eq!(read_text(&path, 1 << 20).unwrap(), text);
            writer.join().unwrap().unwrap();
        }
        let to = path.clone();
        let writer = thread::spawn(move || fs::write(to, "secret"));
        assert_eq!(*read_secret(&path).unwrap(), "secret");
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn a_pipe_whose_writer_has_left_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"text").unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        assert_eq!(read_text(&path, 9).unwrap(), "text");
    }

    #[test]
    fn a_file_that_is_too_long_or_no_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let error = read_text(&path, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for path in [Path::new("/dev/zero"), &socket] {
            let error = read_text(path, 9).unwrap_err().to_string();
            assert!(error.contains("a socket or a device"), "{error}");
        }
        let error = read_text(folder.path(), 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    }
}
