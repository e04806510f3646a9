//! Bytes both ways between two sockets, which stay in the kernel: CONNECT (RFC 9110, section 9.3.6) and what Upgrade leads to.

use std::cell::Cell;
use std::io;

use rustix::net::Shutdown;
use strait_transfer::pipe::Pipe;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::buffer::Buffer;
use crate::socket::{Gone, Socket};
use crate::worker::Worker;

/// Moves bytes until both ends have finished, one is gone, or nothing has moved for too long. What was read of either is sent first.
pub(crate) async fn run(
    worker: &Worker,
    client: (&mut Socket, &mut Buffer),
    origin: (&mut Socket, &mut Buffer),
) -> Result<(), Gone> {
    let ((client, from_client), (origin, from_origin)) = (client, origin);
    origin.write_all(from_client.filled(), &[]).await?;
    from_client.clear();
    client.write_all(from_origin.filled(), &[]).await?;
    from_origin.clear();
    let (up, down) = (Cell::new(0), Cell::new(0));
    let moved = {
        let (client, origin) = (client.tcp(), origin.tcp());
        let both = async { tokio::try_join!(one_way(client, origin, &up), one_way(origin, client, &down)) };
        let mut both = std::pin::pin!(both);
        loop {
            let before = (up.get(), down.get());
            match tokio::time::timeout(worker.settings().timeouts.tunnel, &mut both).await {
                Ok(ended) => break ended.map(drop).map_err(Gone::Closed),
                Err(_) if (up.get(), down.get()) == before => break Err(Gone::TimedOut),
                Err(_) => {}
            }
        }
    };
    origin.moved.spliced += up.get();
    client.moved.spliced += down.get();
    moved
}

async fn one_way(from: &TcpStream, to: &TcpStream, moved: &Cell<u64>) -> io::Result<()> {
    let mut pipe = Pipe::new()?;
    loop {
        let read = from.async_io(Interest::READABLE, || Ok(pipe.fill(from, u64::MAX)?)).await?;
        if read == 0 {
            // The other way may go on.
            let _ = rustix::net::shutdown(to, Shutdown::Write);
            return Ok(());
        }
        while pipe.held() > 0 {
            let sent = to.async_io(Interest::WRITABLE, || Ok(pipe.empty(to, None)?)).await?;
            moved.set(moved.get() + sent as u64);
        }
    }
}
