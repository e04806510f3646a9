//! Gateway of an API.

use super::{Example, Site, count, send};
use crate::grpc;
use crate::origin::Origin;

const HOST: &str = "https://api.example.org";

/// Starts a server that names itself in each response.
fn server(name: &'static str) -> Origin {
    Origin::new(move |request, stream| send(request, stream, ("200 OK", ""), name.as_bytes()))
}

fn start(servers: &[Origin; 2], orders_port: u16) -> Site {
    Example::read("api")
        .certificate("api.example.org", &["api.example.org"])
        .put("10.0.1.1:9000", &servers[0].address.to_string())
        .put("10.0.1.2:9000", &servers[1].address.to_string())
        .put("10.0.1.3:50051", &format!("127.0.0.1:{orders_port}"))
        // No server listens there.
        .put("10.0.1.4:50051", "127.0.0.1:2")
        .start()
}

#[test]
fn rates_hold_by_route_and_the_catalogue_is_shared() {
    let servers = [server("one"), server("two")];
    let site = start(&servers, 1);
    let catalogue = format!("{HOST}/v1/catalogue?b=2&a=1");
    assert_eq!(site.get(&catalogue, "").head.status, 200);
    site.hit(&catalogue, "");
    // Five at once, then one in twelve seconds.
    let login = || site.ask("POST", &format!("{HOST}/v1/login"), "Content-Length: 0\r\n");
    let responses: Vec<_> = (0..8).map(|_| login()).collect();
    assert_eq!(responses[0].head.status, 200);
    let refused = responses.iter().find(|response| response.head.status == 429).unwrap();
    assert!(refused.head.field("retry-after").is_some());
    // The other limits are not affected.
    for path in ["/v1/orders/7", "/v1/orders/7"] {
        let response = site.get(&format!("{HOST}{path}"), "");
        assert!(response.head.status == 200 && !response.head.is_hit());
    }
    assert_eq!(servers.iter().map(|server| count(server, "/v1/orders/7")).sum::<usize>(), 2);
    assert_eq!(site.get(&format!("{HOST}/"), "").head.status, 404);
    assert_eq!(site.get(&format!("{HOST}/v1/login"), "").head.status, 404);
    assert_eq!(site.get(&format!("{HOST}/healthz"), "").head.status, 404);
}

#[test]
fn calls_of_grpc_reach_their_own_servers() {
    let Some(python) = grpc::python_or_skip() else { return };
    let orders = grpc::Server::start(&python, &[]);
    let site = start(&[server("one"), server("two")], orders.port);
    let root = site.authority.file("ca.pem").display().to_string();
    let more = ["--root", &root, "--host", "api.example.org", "--service", "shop.Orders"];
    let address = site.secure();
    let call = |case: &[&str]| grpc::run(&python, address, &[case, &more].concat());
    assert_eq!(call(&["both", "3"]), "3 OK");
    let results = call(&["rate", "200"]);
    let (answered, codes) = results.split_once(' ').unwrap();
    assert!(answered.parse::<u32>().unwrap() > 30 && codes == "OK UNAVAILABLE", "{results}");
}
