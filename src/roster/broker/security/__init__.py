"""Who may connect to the broker, and what they may do: TLS, logins, users, ACLs."""
