"""The one place where a request meets the ACLs, before its handler: what the client may not do is taken out of the
request, and refused in the response with Kafka's error codes. `dispatch.ROUTES` has a gate for each request.
"""
