# Varnish as a caching reverse proxy. What is not cacheable is passed at once by the built-in rules.
vcl 4.1;

backend origin {
    .host = "@ORIGIN_HOST@";
    .port = "@ORIGIN_PORT@";
    .max_connections = 4096;
}
