//! Sends 64 MiB to every client on one thread: `tokio-send [ADDRESS]`, with `nc ADDRESS | wc -c` as
//! client.
//!
//! All connections share one engine and one buffer, which is sent without a copy if that pays.

use std::error::Error;
use std::time::Duration;

use strait_transfer::{Options, Plan, Segment};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_send::{AsyncEngine, AsyncSender};

/// Number of times that the buffer is sent: 64 MiB with the engine's default of 256 KiB.
const TIMES: usize = 256;
/// Time limit for a peer to take all of it.
const LIMIT: Duration = Duration::from_mins(1);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9000".into());
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(&address))
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let engine = AsyncEngine::new(Options::default())?;
    let mut body = engine.with(|engine| engine.buffer()).ok_or("the engine has no buffer")?;
    body.fill(b'.');
    let len = body.len();
    let body = body.freeze(0..len);
    let mut plan = Plan::new().with(Segment::Bytes(b"64 MiB of dots\n".as_slice().into()));
    (0..TIMES).for_each(|_| plan.push(Segment::Shared(body.clone())));
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The client disconnected, or descriptors are exhausted: continue with the others.
                eprintln!("accept: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (engine, plan) = (engine.clone(), plan.clone());
        spawn_local(async move {
            match timeout(LIMIT, send(&engine, stream, plan)).await {
                Ok(Ok(account)) => println!("{peer}: {account}"),
                Ok(Err(error)) => eprintln!("{peer}: {error}"),
                Err(_) => eprintln!("{peer}: has not received everything in {} s", LIMIT.as_secs()),
            }
        });
    }
}

/// Sends a plan; returns its account as text.
async fn send(engine: &AsyncEngine, stream: TcpStream, plan: Plan) -> Result<String, Box<dyn Error>> {
    let mut sender = AsyncSender::new(engine, stream.into_std()?)?;
    sender.send(plan).await?;
    sender.finish().await?;
    Ok(sender.sender().account().to_string())
}
