//! Many certificates, found by the host that the client names (SNI).

use std::fmt::Write as _;

use strait_proxy::{Clock, Config, Proxy};

use crate::tls::rig::Authority;
use crate::tls::sites::get;

/// Number of certificates without `STRAIT_CERTIFICATES`.
const CERTIFICATES: usize = 1000;
/// Clients that connect.
const CLIENTS: usize = 40;

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn each_of_many_hosts_has_its_certificate() {
    let certificates =
        std::env::var("STRAIT_CERTIFICATES").map_or(CERTIFICATES, |text| text.parse().unwrap());
    let authority = Authority::new();
    authority.sign("other", "other.example", 2999);
    let path = |name: &str| authority.file(name).display().to_string();
    let mut toml = format!(
        "workers = 1\nlisten = []\n[tls]\nlisten = [\"127.0.0.1:0\"]\ncertificate = \"{}\"\nkey = \"{}\"\n",
        path("other.pem"),
        path("other.key")
    );
    for number in 0..certificates {
        let name = format!("{number}");
        authority.sign(&name, &format!("www{number}.example"), 2999);
        write!(
            toml,
            "[[site]]\nhosts = [\"www{number}.example\"]\ncertificate = \"{}\"\nkey = \"{}\"\n\
             [[site.route]]\nrespond = {{ body = \"{number}\" }}\n",
            path(&format!("{name}.pem")),
            path(&format!("{name}.key"))
        )
        .unwrap();
    }
    let config = Config::from_toml(&toml).unwrap();
    let before = resident();
    let mut proxy = Proxy::start(&config, Clock::system()).unwrap();
    // Without other tests this is the memory of certificates, keys and sites.
    eprintln!("{certificates} certificates: {} bytes resident", resident().saturating_sub(before));
    let client = authority.client();
    let ask = |proxy: &Proxy, turn: usize| {
        let number = turn * 7919 % certificates;
        let host = format!("www{number}.example");
        // The handshake fails if the certificate is not for the host.
        let response = get(&client, proxy.address(), &host, (&host, "/")).unwrap();
        assert!(response.ends_with(&format!("\r\n\r\n{number}")), "{host}: {response}");
    };
    (0..CLIENTS).for_each(|turn| ask(&proxy, turn));
    assert!(get(&client, proxy.address(), "www.other", ("www.other", "/")).is_err());
    assert!(proxy.reload(&config).unwrap().is_empty());
    (0..CLIENTS).for_each(|turn| ask(&proxy, turn));
}
